"""`hone rl` in mode split: from the config to the processes of the run, and what is said about them.

Server, trainer and orchestrator get the resolved config in files of the launcher's, so that a role that is started
again reads what it read before, whatever became of the files on the command line.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hone.commands.detach import COMMAND, DETACHED, LAUNCHER, hand_over
from hone.config.dump import to_toml
from hone.config.inference import ServeConfig
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.model.files import TINY
from hone.orchestrator.child import INFERENCE, ORCHESTRATOR, TRAINER, Child
from hone.orchestrator.launch import Launch, Role, port_problem
from hone.orchestrator.placement import CORES, Placement, placed, share_of_cores, visible_gpus
from hone.runs.checkpoint import Checkpoints
from hone.runs.outputs import LAUNCHER as LOCK
from hone.runs.outputs import Lock, holder
from hone.runs.predictions import check as check_predictions
from hone.runs.provenance import resume_command
from hone.runs.settings import run_toml

HOST = "127.0.0.1"
"""Where the server of a run listens: the run asks it from this machine."""


def run(config: RLConfig) -> int:
    """Starts the processes, and returns the orchestrator's exit code when they have ended.

    UserError if one can't be started, or dies in a way that the run does not survive.
    """
    check_predictions(config)
    folder = config.output_dir
    if holder(folder) is not None:
        raise UserError(f"another process is writing a run in {folder}: wait for it, or choose another --output-dir")
    serves = config.orchestrator.client.base_url is None
    if serves:
        check_port(config.inference.port)
    gpus = visible_gpus() if config.model.device in ("auto", "cuda") else []
    placement = placed(gpus, config.trainer.ranks, serves)
    scratch = Path(tempfile.mkdtemp(prefix="hone-rl-"))
    locks: list[Lock] = []

    def opened() -> None:
        locks.append(Lock(folder, LOCK))
        hand_over(folder, "rl")

    launch = Launch(
        roles(config, placement, scratch),
        folder,
        scratch,
        _say,
        lambda: from_where(folder),
        resume_command(folder, "rl"),
        variables(),
        restarts=config.restarts,
        grace_seconds=config.grace_seconds,
        began=lambda children: _say(introduction(config, children, placement)),
        opened=opened,
    )
    kept = False
    try:
        return launch.run()
    except UserError as error:
        kept = str(scratch) in str(error)  # it names a log in there
        raise
    finally:
        for lock in locks:
            (folder / LOCK).unlink(missing_ok=True)
            lock.release()
        if not kept:
            shutil.rmtree(scratch, ignore_errors=True)


def roles(config: RLConfig, placement: Placement, scratch: Path) -> list[Role]:
    """The processes of the run, with their configs in `scratch`."""
    whole, served = scratch / "config.toml", scratch / "inference.toml"
    whole.write_text(run_toml(config, "rl"))
    python = [sys.executable, "-P", "-m", "hone.cli"]
    drift = ["--allow-drift"] if config.allow_drift else []
    driver = Role(
        ORCHESTRATOR,
        [*python, ORCHESTRATOR, "@", str(whole)],
        first=[*_resume(config), *drift],
        again=["--resume", *drift],
        env={"CUDA_VISIBLE_DEVICES": ""} if placement.trainer else {},
    )
    trainer = Role(
        TRAINER,
        [*python, TRAINER, "@", str(whole)],
        ranks=config.trainer.ranks,
        env=_computing(config, placement.trainer, config.trainer.ranks),
    )
    if config.orchestrator.client.base_url is not None:
        return [trainer, driver]
    served.write_text(to_toml(serve_config(config, bool(placement.inference))))
    port = config.inference.port
    server = Role(
        INFERENCE,
        [*python, INFERENCE, "@", str(served)],
        env=_computing(config, placement.inference, 1),
        health=(HOST, port),
    )
    return [server, trainer, driver]


def variables() -> dict[str, str]:
    """The environment of all roles: lines as they come, no spinning on cores that they share."""
    # What torchrun or a scheduler has set for this process is not for those of the run.
    foreign = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", DETACHED)
    own = {name: value for name, value in os.environ.items() if name not in foreign}
    launched = {COMMAND: json.dumps(sys.argv), LAUNCHER: str(os.getpid())}
    return {"GOMP_SPINCOUNT": "1000"} | own | {"PYTHONUNBUFFERED": "1"} | launched


def _computing(config: RLConfig, gpus: tuple[str, ...], processes: int) -> dict[str, str]:
    """The environment of a role whose processes, so many, compute: their GPUs, and cores for all of them together."""
    every = config.trainer.ranks + (config.orchestrator.client.base_url is None)
    devices = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    return {CORES: str(processes * share_of_cores(every))} | devices


def _resume(config: RLConfig) -> list[str]:
    """The flags by which the run was told to go on from a checkpoint, which its config.toml does not hold."""
    if (resume := config.resume) is None:
        return []
    step = [] if resume.step is None else ["--resume.step", str(resume.step)]
    return ["--resume", *step, *([] if resume.dir is None else ["--resume.dir", str(resume.dir)])]


def serve_config(config: RLConfig, on_gpu: bool) -> ServeConfig:
    """The config of the run's own server. vLLM's memory and dtype are those that it has in a run of one process."""
    own = config.inference
    settings: dict[str, Any] = {
        name: getattr(own, name)
        for name in ("port", "backend", "batch_invariant", "cuda_graphs", "vllm_python", "dtype")
    }
    settings |= {name: getattr(config, name) for name in ("model", "seed", "precision", "threads", "transport")}
    settings |= {"host": HOST, "output_dir": config.output_dir}
    kv_gib = own.kv_gib
    if own.backend == "vllm":
        kv_gib = kv_gib or (8.0 if on_gpu else 1.0)
        settings["max_model_len"] = min(config.seq_len + 1, _context(config) or config.seq_len + 1)
        if own.dtype == "auto":
            settings["dtype"] = "float32" if config.precision == "fp32" else "bfloat16"
    if kv_gib is not None:
        settings["kv_gib"] = kv_gib
    return ServeConfig(**settings)


def _context(config: RLConfig) -> int | None:
    """The longest sequence of the model; None where only the hub knows."""
    if config.model.name == TINY:
        return config.model.init.max_positions
    with contextlib.suppress(OSError, ValueError):
        return json.loads((Path(config.model.name) / "config.json").read_bytes()).get("max_position_embeddings")
    return None


def check_port(port: int) -> None:
    """UserError if something listens on the port: it would be taken for the run's own server."""
    if (problem := port_problem(HOST, port)) is None:
        return
    if problem.errno != errno.EADDRINUSE:
        raise UserError(f"port {port} can't be listened on ({problem}): choose another with --inference.port")
    raise UserError(
        f"port {port} is in use, by another server maybe: sample from that with --orchestrator.client.base-url "
        f"http://localhost:{port}/v1, or have one started on another with --inference.port {port + 1}"
    )


def from_where(folder: Path) -> str:
    """From where a run would go on, in words."""
    steps = Checkpoints(folder / "checkpoints").steps()
    return f"from the last checkpoint, step {steps[-1]}" if steps else "at step 0, for there is no checkpoint"


def introduction(config: RLConfig, children: Sequence[Child], placement: Placement) -> str:
    """Which process does what, where its lines are, and how to end them all."""
    folder = config.output_dir
    gpus = {INFERENCE: placement.inference, TRAINER: placement.trainer}
    lines = [f"RL in {len(children)} processes on this machine, into {folder}"]
    if config.orchestrator.client.base_url is not None:
        lines.append(f"    inference     the server that is up at {config.server_url}")
    for role in dict.fromkeys(child.role for child in children):
        pids = " ".join(str(child.pid) for child in children if child.role == role)
        facts = {
            INFERENCE: f"{config.model.name} at {config.server_url}",
            TRAINER: f"{config.trainer.ranks} ranks" if config.trainer.ranks > 1 else "one process",
            ORCHESTRATOR: "samples, grades, and writes the run",
        }[role]
        where = f", GPU {', '.join(gpus[role])}" if gpus.get(role) else ""
        lines.append(f"    {role:<13} pid {pids}: {facts}{where}; log {folder / 'logs' / f'{role}.log'}")
    quoted = shlex.quote(str(folder))
    lines.append(
        f"To end all of them, saved: Ctrl-C, or hone runs stop {quoted}. To follow: bash scripts/tmux.sh {quoted}"
    )
    return "\n".join(lines)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a reader that has left is no reason to lose the run
        print(text, flush=True)
