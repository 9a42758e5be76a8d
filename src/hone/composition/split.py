"""RL in several processes: servers sample, the trainer trains, and this one draws, grades and hands on.

The steps are those of `hone.composition.rl`; the policy is behind servers, the trainer behind a folder.

    rl --trainer @ train.toml --orchestrator @ orch.toml --inference @ infer.toml
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hone.composition import parts
from hone.composition.machine import Machine, configure, resolve
from hone.composition.memory import versions_in_memory
from hone.composition.rl import RL
from hone.composition.sampling import endpoint_of
from hone.config.rl import SAMPLED_BY, RLConfig, TrainerConfig
from hone.errors import UserError
from hone.model.hf import copy_weights, model_config
from hone.orchestrator.canary import EXAMPLES, GapWatch, band_from_config, fixed_tokens
from hone.orchestrator.fleet import Carry, Fleet
from hone.orchestrator.launch import RESTARTED
from hone.orchestrator.placement import server_roles
from hone.orchestrator.reach import NoServer, Server, reach
from hone.orchestrator.remote import ServerPolicy
from hone.orchestrator.remote_trainer import RemoteTrainer
from hone.orchestrator.shared_memory import given_folder, shortage
from hone.runs import provenance, view
from hone.runs.display import say
from hone.runs.observer import Observer
from hone.runs.saving import Snapshot
from hone.trainer.agreement import shared_values
from hone.trainer.export import add_tokenizer
from hone.transport import FileTransport, Hello, Session

HELLO_SECONDS = 1.0
"""How often it is looked whether the trainer lives."""


class SplitRL(RL):
    """A run of RL that samples from servers and trains in other processes.

    `launched`: the launcher sees by itself when the trainer dies. `hello` and `servers` are there once it is open.
    """

    def __init__(
        self, config: RLConfig, *, observers: Sequence[Observer] = (), command: list[str], launched: bool
    ) -> None:
        super().__init__(config, observers=observers)
        self.command, self.launched = command, launched

    def _refuse_unsupported(self) -> None: ...

    def _load_model(self) -> None:
        self.decoder = model_config(self.source, self.config.model.init, self.config.model.implementation)

    def _open(self, stack: ExitStack) -> None:
        self._check()
        transport = FileTransport(self.config.transport_path, self.config.transport.max_tokens)
        began, hello = time.monotonic(), transport.hello(timeout=2.0)
        while hello is None:
            say(f"Waiting for a trainer at {transport.path} ({time.monotonic() - began:.0f} s)")
            hello = transport.hello(timeout=30.0)
        self.hello = hello
        # A trainer that was started alone has its settings from a file of its own.
        own = TrainerConfig.model_validate(hello.settings | {"ranks": hello.ranks})
        if self.config.algorithm and own.loss != self.config.trainer.loss:
            raise UserError(
                f"algorithm = {self.config.algorithm} sets another trainer.loss than the trainer has that is up: start "
                f"that with --algorithm {self.config.algorithm}, too"
            )
        config = self.config = resolve(self.config, Machine(self.decoder, hello.device, trainer=(own, hello.threads)))
        config.check_kl_in_reward()
        if config.cluster is not None:
            join_cluster()
        for env in self.all_envs:
            parts.use_graders(env, config.orchestrator.grading, config.cluster, bool(config.deterministic))
        # As the trainer, for run.json records it.
        configure(hello.threads, hello.parameters, deterministic=bool(config.deterministic))
        self.servers, absent = self._reach(config.server_urls, transport, hello)
        backend = self.servers[0].backend
        if any(server.backend != backend for server in self.servers):
            raise UserError(f"{' and '.join(s.name for s in self.servers)} are of two kinds: sample from one of them")
        if backend == "vllm":
            config.refuse_cuts()
        is_initial = self.source == config.model.name
        digests = {"model": hello.fingerprint, "tokenizer": self.renderer.digest()} if is_initial else {}
        digests |= hello.digests
        run = self._open_run(stack, digests, with_tensors=False, ranks=hello.ranks)
        if run.nothing_left:
            return
        if config.sampled_by is not None:
            run.mark_inexact(run.start_step, SAMPLED_BY + config.sampled_by)
        for restart in json.loads(os.environ.get(RESTARTED) or "[]"):
            run.event("restart", run.start_step, **restart)
        ledger = self._restored(run.restored[1] if run.restored else None)
        fleet = Fleet(self.servers, run.display.message, self._carry(), absent)
        policy = ServerPolicy(fleet, self.renderer, self.decoder.eos_token_ids)

        def note_changes() -> None:
            """Record which servers were lost, and which are back."""
            while policy.fleet.changes:
                run.event("server", policy.version, **policy.fleet.changes.pop(0))

        stack.callback(note_changes)
        samplers = self._samplers(policy)
        start, temperature = run.start_step, config.orchestrator.sampling.temperature
        canary = fixed_tokens(next(iter(samplers.values())).first_examples(EXAMPLES), self.renderer, config.seq_len)
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
            temperature=temperature,
            canary=canary,
            lag=config.orchestrator.max_async_level,
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

        def snapshot(checkpoint: bool) -> Snapshot:
            trainer.kept = trainer.version
            part = trainer.part(trainer.version) if checkpoint else None
            return Snapshot({}, ledger.state(before=trainer.version), part)

        def export(folder: Path, step: int, _: Any) -> None:
            source = transport.weights(step)
            if memory is not None and source.is_relative_to(memory):
                copy_weights(source, folder)
            else:
                link_files(source, folder)
            add_tokenizer(folder, self.renderer, parts.card(config, step))
            if trainer.kept == step:
                trainer.kept = None

        stack.enter_context(self._saving(export, snapshot, config.ckpt, planned=True))
        trainer.saver = self.saver
        band = band_from_config(config, self.decoder.num_layers, backend)
        watch = GapWatch(band, config.gap.action, run)

        def publish(version: int) -> dict[str, float]:
            """Judge what the publisher has measured; empty where there was no time left to publish."""
            note_changes()
            published = trainer.published
            assert published is not None and published.result.version == version
            if published.error is not None:
                raise published.error
            if published.scores is None:
                return {}
            return watch.scored(version, published.scores, published.result.canary)

        self._make_steps(samplers, policy, trainer, ledger, watch, publish)
        trainer.start()
        trainer.take()  # the version that the session begins with

    def _carry(self) -> Carry:
        """Return what brings weights to the machines of the servers."""
        if self.config.cluster is None:
            return lambda number, path: None
        from hone.orchestrator.cluster.weights import Carrier

        return Carrier(server_roles(len(self.servers)), given_folder())

    def _reach(self, urls: list[str], transport: FileTransport, hello: Hello) -> tuple[list[Server], set[int]]:
        """Return the servers, and the numbers of those that are not there yet: on a cluster one is enough to begin."""
        if self.config.cluster is None:
            return [self._reached(url, transport, hello) for url in urls], set()
        began, found = time.monotonic(), dict[int, Server]()
        while True:
            is_last = time.monotonic() - began > self.config.orchestrator.client.timeout
            for number, url in enumerate(urls):
                with nullcontext() if is_last else suppress(NoServer):
                    found[number] = self._reached(url, transport, hello, patience=0.0)
            if found:
                break
            time.sleep(0.5)
        first = next(iter(found.values()))
        others = {n: replace(first, endpoint=endpoint_of(self.config, url)) for n, url in enumerate(urls)}
        return list((others | found).values()), set(others) - set(found)

    def _reached(self, url: str, transport: FileTransport, hello: Hello, patience: float | None = None) -> Server:
        """Return the server at `url`. Raises UserError if it does not fit the run, NoServer if nothing answers."""
        config, client = self.config, self.config.orchestrator.client
        # A server that died is started again, alone or with this process: the client is not to try for long.
        endpoint = endpoint_of(config, url)
        endpoint = replace(endpoint, max_retries=min(endpoint.max_retries, 1))
        weights = transport.weights_root / "none"
        return reach(
            *(endpoint, config.model.name, self.renderer, config.seq_len, weights, hello.parameters),
            patience=client.timeout if patience is None else patience,
            named=client.base_url is not None,
        )


def join_cluster() -> None:
    """Connect this process to the cluster of its launcher."""
    from hone.orchestrator.cluster.nodes import VARIABLE, connect

    address, namespace = os.environ[VARIABLE].split()
    connect(address, namespace)


def link_files(source: Path, folder: Path) -> None:
    """Put the files of `source`, an adapter's too, into `folder`: as links, or as copies where links are impossible."""

    def link(file: str, target: str) -> None:
        try:
            os.link(file, target)
        except OSError:  # another file system, or one without links
            shutil.copyfile(file, target)

    shutil.copytree(source, folder, copy_function=link, dirs_exist_ok=True)


def watch_trainer(transport: FileTransport, hello: Hello, folder: Path) -> Callable[[], None]:
    """Return what is called in waiting for the trainer: UserError once that is gone, or was started anew."""
    looked, missed = time.monotonic(), 0

    def look() -> None:
        nonlocal looked, missed
        if time.monotonic() - looked < HELLO_SECONDS:
            return
        looked = time.monotonic()
        now = FileTransport(transport.path).hello(timeout=0)
        missed = missed + 1 if now is None or now.id != hello.id else 0
        if missed == 2:  # once is not enough: its last words may not have been looked for since it left
            config = shlex.quote(str(folder / view.CONFIG))
            raise UserError(
                f"the trainer (process {hello.pid} on {hello.host}) is gone, and what it had made since the last "
                f"checkpoint: start a trainer, and go on with: hone orchestrator @ {config} --resume"
            )

    return look
