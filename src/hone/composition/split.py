"""RL in several processes: a server samples, the trainer trains, and this one draws, grades and hands on.

The steps are those of `hone.composition.rl`; the policy is behind a server, the trainer behind a folder.

    rl --trainer @ train.toml --orchestrator @ orch.toml --inference @ infer.toml
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hone.composition import parts
from hone.composition.machine import configure
from hone.composition.rl import RL
from hone.composition.sampling import endpoint_of
from hone.config.rl import RLConfig, TrainerConfig
from hone.errors import UserError
from hone.model.chat import ChatRenderer
from hone.model.hf import model_config
from hone.orchestrator.canary import EXAMPLES, GapWatch, band_from_config, fixed_tokens
from hone.orchestrator.exactness import exactness, inexact_sampling
from hone.orchestrator.groups import GroupSampler
from hone.orchestrator.launch import RESTARTED
from hone.orchestrator.reach import Server, reach, wait_for_server
from hone.orchestrator.remote import ServerPolicy
from hone.orchestrator.remote_trainer import Publisher, RemoteTrainer
from hone.runs import provenance
from hone.runs.files import TMP_PREFIX
from hone.runs.observer import Observer
from hone.runs.saving import Snapshot
from hone.trainer.agreement import shared_values
from hone.transport import FileTransport, Hello, Session

HELLO_SECONDS = 1.0
"""How often it is looked whether the trainer lives."""
STAGE = TMP_PREFIX + "weights"
"""Folder in the run for the files of a version that is about to be saved."""


class SplitRL(RL):
    """A run of RL that samples from a server and trains in other processes.

    `launched`: the launcher sees by itself when the trainer dies. `hello` and `server` are there once it is open.
    """

    def __init__(
        self, config: RLConfig, *, observers: Sequence[Observer] = (), command: list[str], launched: bool
    ) -> None:
        super().__init__(config, observers=observers)
        self.command, self.launched = command, launched

    def _refuse_unsupported(self) -> None: ...

    def _load_model(self) -> None:
        self.decoder = model_config(self.source, self.config.model.init)

    def _open(self, stack: ExitStack) -> None:
        self._check()
        transport = FileTransport(self.config.transport_path, self.config.transport.max_tokens)
        self.hello = hello = wait_for_trainer(transport)
        # A trainer that was started alone has its settings from a file of its own.
        own = TrainerConfig.model_validate(hello.settings | {"ranks": hello.ranks})
        config = parts.with_determinism(self.config.model_copy(update={"trainer": own}), hello.device)
        self.config = config
        self.env.use_workers(config.orchestrator.grading, deterministic=bool(config.deterministic))
        configure(hello.threads, hello.parameters, bool(config.deterministic))  # as the trainer: run.json records it
        self.server = server = connect(config, self.renderer, transport, hello.parameters)
        is_initial = self.source == config.model.name
        digests = {"model": hello.fingerprint, "tokenizer": self.renderer.digest()} if is_initial else {}
        run = self._open_run(stack, digests, with_tensors=False, ranks=hello.ranks)
        if run.nothing_left:
            return
        run.note(exactness=exactness(config, server, hello.ranks))
        for cause in inexact_sampling(config, server):
            run.mark_inexact(run.start_step, cause)
        for restart in json.loads(os.environ.get(RESTARTED) or "[]"):
            run.event("restart", run.start_step, **restart)
        ledger = self._restored(run.restored[1] if run.restored else None)
        policy = ServerPolicy(server, self.renderer, self.decoder.eos_token_ids)
        sampler = GroupSampler(config, self.env, self.renderer, policy, self.curriculum)
        start, temperature = run.start_step, config.orchestrator.sampling.temperature
        canary = fixed_tokens(sampler.first(EXAMPLES), self.renderer, config.seq_len)
        session = Session(
            id=provenance.new_id(),
            start=start,
            checkpoint=str(run.checkpoints.path(start).absolute()) if run.restored else None,
            output_dir=str(config.output_dir.absolute()),
            shared=shared_values(config),
            temperature=temperature,
            canary=canary,
            lag=config.orchestrator.max_async_level,
        )
        transport.open(session)
        stack.callback(transport.close)
        evals = config.orchestrator.eval
        publishers_end = FileTransport(config.transport_path)
        publishers_end.session(wait=False)
        evaluated = lambda version: evals is not None and version % evals.interval == 0  # noqa: E731
        publisher = Publisher(publishers_end, policy, canary, temperature, start, evaluated)
        trainer = RemoteTrainer(transport, publisher, run.checkpoints, start, lambda: policy.idle_seconds)
        stack.callback(trainer.close)
        transport.interrupt = trainer.alive
        if not self.launched:
            trainer.alive = transport.interrupt = watch_trainer(transport, hello, run.folder)

        def snapshot(checkpoint: bool) -> Snapshot:
            stage(transport.weights(trainer.version), run.folder)
            part = trainer.part(trainer.version) if checkpoint else None
            return Snapshot({}, ledger.state(before=trainer.version), part)

        def export(folder: Path, step: int, _: Any) -> None:
            for file in (run.folder / STAGE).iterdir():
                file.rename(folder / file.name)
            (run.folder / STAGE).rmdir()
            self.renderer.save(folder)
            (folder / "README.md").write_text(parts.card(config, step), encoding="utf-8")

        stack.enter_context(self._saving(export, snapshot, config.ckpt, planned=True))
        saver = self.saver
        trainer.check_time, trainer.phase = saver.stop.check, run.phase
        trainer.saves = lambda version: saver.wants_checkpoint(version) and version < config.max_steps
        watch = GapWatch(band_from_config(config, server.backend), config.gap.action, run)

        def publish(version: int) -> dict[str, float]:
            """Judge what the publisher has measured; empty where there was no time left to publish."""
            published = trainer.published
            assert published is not None and published.result.version == version
            if published.error is not None:
                raise published.error
            if published.scores is None:
                return {}
            return watch.scored(version, published.scores, published.result.canary)

        self._make_steps(sampler, policy, trainer, ledger, watch, publish)
        trainer.publisher.start()
        trainer.take()  # the version that the session begins with


def wait_for_trainer(transport: FileTransport) -> Hello:
    """Wait for the trainer of the run, with a line now and then."""
    began, hello = time.monotonic(), transport.hello(timeout=2.0)
    while hello is None:
        print(f"Waiting for a trainer at {transport.path} ({time.monotonic() - began:.0f} s)", flush=True)
        hello = transport.hello(timeout=30.0)
    return hello


def connect(config: RLConfig, renderer: ChatRenderer, transport: FileTransport, parameters: int) -> Server:
    """Return the server to sample from, once it answers. Raises UserError if it serves something else."""
    patience = config.orchestrator.client.timeout
    # A server that died is started again with this process: the client is not to try for long.
    endpoint = endpoint_of(config, config.server_url)
    endpoint = replace(endpoint, max_retries=min(endpoint.max_retries, 1))
    wait_for_server(endpoint, patience, lambda text: print(text, flush=True))
    return reach(endpoint, config.model.name, renderer, config.seq_len, transport.weights_root / "none", parameters)


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
            config = shlex.quote(str(folder / "config.toml"))
            raise UserError(
                f"the trainer (process {hello.pid} on {hello.host}) is gone, and what it had made since the last "
                f"checkpoint: start a trainer, and go on with: hone orchestrator @ {config} --resume"
            )

    return look


def stage(weights: Path, folder: Path) -> None:
    """Keep the files of a version that the transport may soon remove: links, or copies where there can't be any."""
    place = folder / STAGE
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for file in weights.iterdir():
        try:
            os.link(file, place / file.name)
        except OSError:
            shutil.copyfile(file, place / file.name)
