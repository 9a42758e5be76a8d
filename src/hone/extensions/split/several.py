"""RL in several processes: servers sample, the trainer trains, and this process draws, grades and sends batches.

The loop is `hone.loops.steps`; it reaches servers by HTTP, the trainer through a folder.

    rl --trainer @ train.toml --orchestrator @ orch.toml --inference @ infer.toml
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hone.config.rl import SAMPLED_BY, RLConfig, TrainerConfig
from hone.errors import UserError
from hone.extension import machines_of, sampler_name
from hone.extensions.split.agreement import shared_values
from hone.extensions.split.launch import RESTARTED
from hone.extensions.split.placement import server_roles
from hone.extensions.split.remote_trainer import RemoteTrainer
from hone.extensions.split.transport import FileTransport, Hello, Session, open_transport
from hone.inference.policy import Policy
from hone.loops.canary import fixed_tokens
from hone.loops.fleet import Carry, Fleet
from hone.loops.machine import Machine, configure, resolve
from hone.loops.memory import versions_in_memory
from hone.loops.reach import NoServer, Server, connect_to_server
from hone.loops.remote import ServerPolicy
from hone.loops.rl import RL
from hone.loops.sampling import endpoint_of
from hone.loops.shared_memory import given_folder, shortage
from hone.loops.updates import Updates
from hone.model.chat import ChatRenderer
from hone.model.config import DecoderConfig
from hone.model.hf import model_config
from hone.runs import provenance, view
from hone.runs.display import say

HELLO_SECONDS = 1.0
"""Seconds between checks that the trainer is alive."""


class SeveralProcesses:
    """Servers sample, and a trainer in other processes trains. With `launched`, a launcher watches the trainer."""

    def __init__(self, launched: bool) -> None:
        self.launched = launched

    def load(self, rl: RL) -> DecoderConfig:
        return model_config(rl.source, rl.config.model.init, rl.config.model.implementation)

    def connect(self, rl: RL) -> dict[str, Any]:
        transport = self.transport = open_transport(rl.config)
        began, hello = time.monotonic(), transport.hello(timeout=2.0)
        while hello is None:
            say(f"Waiting for a trainer at {transport.path} ({time.monotonic() - began:.0f} s)")
            hello = transport.hello(timeout=30.0)
        self.hello = hello
        # A trainer that was started alone has settings from another file.
        trainer = TrainerConfig.model_validate(hello.settings | {"ranks": hello.ranks})
        if rl.config.algorithm and trainer.loss != rl.config.trainer.loss:
            raise UserError(
                f"algorithm = {rl.config.algorithm} sets another trainer.loss than the running trainer has: start the "
                f"trainer with --algorithm {rl.config.algorithm}, too"
            )
        config = rl.config = resolve(rl.config, Machine(rl.decoder, hello.device, trainer=(trainer, hello.threads)))
        config.check_kl_in_reward()
        grading = config.orchestrator.grading
        if (machines := machines_of(config)) is not None:
            machines.join()
        for env in rl.all_envs:
            workers = machines.use_graders(env, grading) if machines else grading
            env.use_workers(workers, deterministic=bool(config.deterministic))
        # As the trainer, for run.json records it.
        configure(hello.threads, hello.parameters, deterministic=bool(config.deterministic))
        self.servers, self._absent = self._reach(config, rl.renderer)
        self.backend: str | None = self.servers[0].backend
        if any(server.backend != self.backend for server in self.servers):
            raise UserError(f"{' and '.join(s.name for s in self.servers)} are different kinds of server: use one kind")
        if not self.servers[0].is_hone:
            config.refuse_cuts(sampler_name(self.servers[0].backend))
        is_initial = rl.source == config.model.name
        digests = {"model": hello.fingerprint, "tokenizer": rl.renderer.digest()} if is_initial else {}
        return {"digests": digests | hello.digests, "with_tensors": False, "ranks": hello.ranks}

    def start(self, rl: RL, stack: ExitStack) -> tuple[Policy, Updates]:
        config, run, hello, transport = rl.config, rl.run, self.hello, self.transport
        start = run.start_step
        if config.sampled_by is not None:
            run.mark_inexact(start, SAMPLED_BY + config.sampled_by)
        for restart in json.loads(os.environ.get(RESTARTED) or "[]"):
            run.event("restart", start, **restart)
        fleet = Fleet(self.servers, run.display.message, self._carry(config), self._absent)
        policy = ServerPolicy(fleet, rl.renderer, rl.decoder.eos_token_ids)
        if (memory := given_folder()) is not None:
            size = hello.parameters * (2 if config.precision == "bf16" else 4)
            if (sentence := shortage(memory, size, versions_in_memory(config))) is not None:
                say(sentence)
                memory = None
        session = Session(
            id=provenance.new_id(),
            start=start,
            checkpoint=str(run.checkpoints.path(start).absolute()) if run.restored else None,
            output_dir=str(config.output_dir.absolute()),
            shared=shared_values(config),
            temperature=config.orchestrator.sampling.temperature,
            canary=fixed_tokens(rl.first_examples, rl.renderer, config.seq_len),
            lag=config.orchestrator.lag,
            memory=None if memory is None else str(memory),
            rollouts=config.orchestrator.rollouts_per_example,
            advantage=config.orchestrator.advantage.model_dump(mode="json"),
        )
        transport.open(session)
        stack.callback(transport.close)
        evals = config.orchestrator.eval
        evaluated = lambda version: evals is not None and version % evals.interval == 0  # noqa: E731
        alive = (lambda: None) if self.launched else watch_trainer(transport, hello, run.folder)
        trainer = RemoteTrainer(transport, session, policy, run, config.max_steps, evaluated, alive)
        stack.callback(trainer.close)
        return policy, trainer

    def _carry(self, config: RLConfig) -> Carry:
        if (machines := machines_of(config)) is None:
            return lambda number, path: None
        return machines.carrier(server_roles(len(self.servers)), given_folder())

    def _reach(self, config: RLConfig, renderer: ChatRenderer) -> tuple[list[Server], set[int]]:
        """Return all servers, and the indices of absent servers. On a cluster, one running server is enough."""
        client, urls = config.orchestrator.client, config.server_urls

        def reached(url: str, patience: float) -> Server:
            """Return the server at `url`. Raises UserError if it does not fit the run, NoServer if nothing answers."""
            # A dead server is restarted, so the client must not retry for long.
            endpoint = endpoint_of(config, url)
            endpoint = replace(endpoint, max_retries=min(endpoint.max_retries, 1))
            weights = self.transport.weights_root / "none"
            fits = config.model.name, renderer, config.seq_len, weights, self.hello.parameters
            return connect_to_server(endpoint, *fits, patience=patience, named=client.base_url is not None)

        if machines_of(config) is None:
            return [reached(url, client.timeout) for url in urls], set()
        began, found = time.monotonic(), dict[int, Server]()
        while True:
            is_last = time.monotonic() - began > client.timeout
            for number, url in enumerate(urls):
                with nullcontext() if is_last else suppress(NoServer):
                    found[number] = reached(url, patience=0.0)
            if found:
                break
            time.sleep(0.5)
        first = next(iter(found.values()))
        others = {n: replace(first, endpoint=endpoint_of(config, url)) for n, url in enumerate(urls)}
        return list((others | found).values()), set(others) - set(found)


def watch_trainer(transport: FileTransport, hello: Hello, folder: Path) -> Callable[[], None]:
    """Return a check to call while waiting. The check raises UserError if the trainer is gone or was restarted."""
    looked, missed = time.monotonic(), 0

    def look() -> None:
        nonlocal looked, missed
        if time.monotonic() - looked < HELLO_SECONDS:
            return
        looked = time.monotonic()
        now = transport.hello(timeout=0)
        missed = missed + 1 if now is None or now.id != hello.id else 0
        if missed == 2:  # the first time, its last messages may be unread
            config = shlex.quote(str(folder / view.CONFIG))
            raise UserError(
                f"the trainer (process {hello.pid} on {hello.host}) is gone, with its work since the last "
                f"checkpoint: start a trainer, and go on with: hone orchestrator @ {config} --resume"
            )

    return look
