"""Configs and processes of the roles that `hone rl` starts in mode split."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hone.commands.detach import COMMAND, DETACHED, LAUNCHER, hand_over
from hone.config.base import changed
from hone.config.dump import to_toml
from hone.config.rl import RLConfig
from hone.config.shared import EngineConfig, ModelConfig
from hone.errors import UserError
from hone.extension import machines_of
from hone.extensions.server.config import ServeConfig
from hone.extensions.split.launch import HOST, Launch, Role, port_problem
from hone.extensions.split.placement import Placement, placed, server_roles
from hone.hardware import CORES, SHARES_GPU, share_of_cores, visible_gpus
from hone.inference.memory import KV_GIB
from hone.loops.child import FOREIGN, INFERENCE, ORCHESTRATOR, TRAINER, Child
from hone.loops.memory import with_precision
from hone.loops.shared_memory import PRESERVED, VARIABLE, scratch_folder, shared_folder
from hone.runs.checkpoint import Checkpoints
from hone.runs.display import say
from hone.runs.outputs import Lock, holder
from hone.runs.provenance import resume_command
from hone.runs.settings import run_toml
from hone.runs.view import CHECKPOINTS, CONFIG, PROCESS_LOGS
from hone.runs.view import LAUNCHER as LOCK


def run_split(config: RLConfig) -> int:
    """Start the processes of all roles. Return the orchestrator's exit code when all processes have ended.

    The launcher writes the config into files for the roles, so a restarted role reads the same config. Raises UserError
    if a role can't be started, or if the death of a role ends the run.
    """
    folder, inference = config.output_dir, config.inference
    if holder(folder) is not None:
        raise UserError(f"another process is writing a run in {folder}: wait for it, or choose another --output-dir")
    serves = config.orchestrator.client.base_url is None
    for port in range(inference.port, inference.port + inference.replicas) if serves else ():
        if (problem := port_problem(port)) is not None:
            raise UserError(
                f"hone can't listen on port {port} ({problem.strerror}): to sample from the server that has it, give "
                f"--orchestrator.client.base-url http://localhost:{port}/v1; for another port, "
                f"--inference.port {port + 1}"
            )
    machines = machines_of(config)
    gpus = visible_gpus() if config.model.device in ("auto", "cuda") and machines is None else []
    if machines is None:
        config = with_precision(config, "cuda" if gpus else "cpu")
    placement = placed(gpus, config.trainer.ranks, inference.replicas if serves else 0, inference.gpus)

    def opened() -> None:
        lock = Lock(folder, LOCK)
        stack.callback(lock.release)
        stack.callback((folder / LOCK).unlink, missing_ok=True)
        hand_over(folder, "rl")

    def last_checkpoint() -> str:
        steps = Checkpoints(folder / CHECKPOINTS).steps()
        return f"from the last checkpoint, step {steps[-1]}" if steps else "at step 0, for there is no checkpoint"

    with ExitStack() as stack:
        memory = stack.enter_context(shared_folder(say)) if serves else None
        nodes = stack.enter_context(machines.nodes(config, say)) if machines else None
        scratch = stack.enter_context(scratch_folder("rl"))
        if nodes is not None:
            say(nodes.introduction())
        launch = Launch(
            roles(config, placement, scratch, on_gpus=nodes.on_gpus if nodes else bool(gpus)),
            folder,
            scratch,
            say,
            last_checkpoint,
            resume_command(folder, {"kind": "rl"}),
            variables(memory),
            restarts=config.restarts,
            grace_seconds=config.grace_seconds,
            began=lambda children: say(introduction(config, children)),
            opened=opened,
            child=nodes.child if nodes else Child,
        )
        try:
            return launch.run()
        except UserError as problem:
            if str(scratch) in str(problem):  # it names a log in there
                (scratch / PRESERVED).touch()
            raise


def roles(config: RLConfig, placement: Placement, scratch: Path, on_gpus: bool) -> list[Role]:
    """Write the configs of the run's roles into `scratch`; return the roles. `on_gpus` is true if servers use GPUs."""
    whole = scratch / CONFIG
    whole.write_text(run_toml(config, "rl"), encoding="utf-8")
    python = [sys.executable, "-P", "-m", "hone.cli"]
    drift, first = ["--allow-drift"] if config.allow_drift else [], []
    if (resume := config.resume) is not None:  # not in config.toml
        first = ["--resume", *([] if resume.step is None else ["--resume.step", str(resume.step)])]
        first += [] if resume.dir is None else ["--resume.dir", str(resume.dir)]
    ranks = config.trainer.ranks
    machines = machines_of(config)
    cores = machines.cores if machines else share_of_cores(ranks + len(placement.inference))
    shares = any(not set(gpus).isdisjoint(placement.trainer) for gpus in placement.inference)

    def computing(gpus: tuple[str, ...], processes: int) -> dict[str, str]:
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        return {CORES: str((1 if machines else processes) * cores)} | devices

    trainer = Role(
        TRAINER,
        [*python, TRAINER, "@", str(whole)],
        first=first,  # it trains as the run began: see `resolved`
        again=["--resume"],
        ranks=ranks,
        env=computing(placement.trainer, ranks) | ({SHARES_GPU: "1"} if shares else {}),
    )
    driver = Role(
        ORCHESTRATOR,
        [*python, ORCHESTRATOR, "@", str(whole)],
        first=[*first, *drift],
        again=["--resume", *drift],
        env={"CUDA_VISIBLE_DEVICES": ""} if on_gpus else {},
    )
    servers = []
    names = server_roles(len(placement.inference))
    for number, (name, gpus) in enumerate(zip(names, placement.inference, strict=True)):
        served, port = scratch / f"{name}.toml", config.inference.port + number
        served.write_text(to_toml(changed(serve_config(config, on_gpus, shares), {"port": port})), encoding="utf-8")
        command = [*python, INFERENCE, "@", str(served)]
        here = None if machines else port  # on another machine the port differs
        servers.append(Role(name, command, env=computing(gpus, 1), port=here))
    return [*servers, trainer, driver]


def variables(memory: Path | None) -> dict[str, str]:
    """Return the roles' environment: this process's variables, unbuffered output, and the folder `memory`, if any."""
    foreign = (*FOREIGN, DETACHED, VARIABLE)
    inherited = {name: value for name, value in os.environ.items() if name not in foreign}
    launched = {COMMAND: json.dumps(sys.argv), LAUNCHER: str(os.getpid())}
    launched |= {VARIABLE: str(memory)} if memory else {}
    return {"GOMP_SPINCOUNT": "1000"} | inherited | {"PYTHONUNBUFFERED": "1"} | launched


def serve_config(config: RLConfig, on_gpu: bool, shares: bool = False) -> ServeConfig:
    """Return the config of a server of the run. If it shares a GPU with the trainer (`shares`), it gets less memory."""
    inference = config.inference
    names = EngineConfig.model_fields.keys() - {"replicas", "kv_gib"}
    settings: dict[str, Any] = {name: getattr(inference, name) for name in names}
    settings |= {name: getattr(config, name) for name in ("seed", "precision", "threads", "transport")}
    settings |= {"host": HOST, "output_dir": config.output_dir.absolute()}
    settings["model"] = ModelConfig.model_validate(config.model.model_dump(exclude={"lora"}))  # versions come merged
    if (kv_gib := inference.kv_gib or (KV_GIB if shares else None)) is not None:
        settings["kv_gib"] = kv_gib
    settings |= inference.server_settings(config, on_gpu, shares)
    return ServeConfig(**settings)


def introduction(config: RLConfig, children: Sequence[Child]) -> str:
    folder, urls = config.output_dir, config.orchestrator.client.urls
    machines = machines_of(config)
    place = machines.place if machines else "this machine"
    lines = [f"RL in {len(children)} processes on {place}, into {folder}"]
    lines += [f"    inference     the running server at {url}" for url in urls]
    for role in dict.fromkeys(child.role for child in children):
        pids = " ".join(str(child.pid) for child in children if child.role == role)
        where = machines.process_place if machines and pids.startswith("0") else f"pid {pids}"
        lines.append(f"    {role:<13} {where}: log {folder / PROCESS_LOGS / f'{role}.log'}")
    if machines and machines.graders:
        lines.append(f"    {'graders':<13} {machines.graders} on {machines.place}, if the rewards need processes")
    end = f"To save and end all: Ctrl-C, or hone runs stop {shlex.quote(str(folder))}"
    return "\n".join([*lines, f"{end}. To follow: bash scripts/tmux.sh {shlex.quote(str(folder))}"])
