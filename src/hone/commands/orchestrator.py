"""`hone orchestrator`: drives a run in mode split. Preflight, the loop, a report; in any order with the other roles.

hone orchestrator @ orch.toml --output-dir outputs
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from hone.commands.api_key import api_key
from hone.commands.cards import card_at_end
from hone.commands.forecast import forecast
from hone.commands.launched import COMMAND as LAUNCHED
from hone.commands.machine import configure
from hone.commands.overlap import check_overlap, left_out, tell_overlap
from hone.commands.preflight import audited
from hone.commands.rl_colocated import (
    card,
    check_lengths,
    failure_watch,
    make_evaluate,
    own_sources,
    task_digests,
    task_of,
    tell_restart,
)
from hone.commands.training import introduce, last_lines, model_source, run_saved, with_determinism
from hone.config.rl import RLConfig, TrainerConfig
from hone.errors import UserError
from hone.inference.endpoint import Endpoint
from hone.model.chat import ChatRenderer, load_renderer
from hone.model.hf import model_config
from hone.orchestrator.canary import fixed_tokens
from hone.orchestrator.conversations import check_turns
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.exactness import note_exactness
from hone.orchestrator.groups import GroupSampler
from hone.orchestrator.launch import RESTARTED
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.publishing import Publisher, SteadyPolicy, wait_for_server
from hone.orchestrator.reach import Server, reach
from hone.orchestrator.recorder import RunRecorder
from hone.orchestrator.remote import UpdatingPolicy
from hone.orchestrator.remote_trainer import RemoteTrainer
from hone.orchestrator.split import SplitLoop
from hone.orchestrator.watch import ScoreWatch, band_of
from hone.runs import provenance
from hone.runs.files import TMP_PREFIX
from hone.runs.prediction import check as check_predictions
from hone.runs.saving import Ending, Saver, Snapshot
from hone.runs.writer import RunWriter
from hone.trainer.agreement import shared_values
from hone.transport import FileTransport, Hello, Session

HELLO_SECONDS = 1.0
"""How often it is looked whether the trainer lives."""


def run(config: RLConfig) -> int:
    """Drives the run to its end; returns the exit code: 0, or 130/143 when a signal ended the run (saved then)."""
    env = task_of(config)
    env.check_rollouts()
    check_predictions(config, env.id)
    source = model_source(config)
    renderer = load_renderer(source, config.model.chat_template)
    decoder = model_config(source, config.model.init)
    overlap = check_overlap(config, env)
    dropped = left_out(config, overlap)
    curriculum = Curriculum.of_run(config, len(env.split("train")), dropped)
    check_turns(env, renderer, env.split("train")[0])
    check_lengths(config, env, renderer, decoder.max_position_embeddings, curriculum)
    preflight = audited(config, env, lambda: task_of(config), renderer)
    transport = FileTransport(config.transport_path, config.transport.max_tokens)
    hello = the_trainer(transport)
    config = with_trainer(with_determinism(config, hello.device), hello)
    env.use_workers(config.orchestrator.grading, deterministic=bool(config.deterministic))
    configure(hello.threads, hello.parameters, bool(config.deterministic))  # as the trainer: run.json tells how
    server = the_server(config, renderer, transport, hello.parameters)

    digests = {"model": hello.fingerprint, "tokenizer": renderer.digest()} if source == config.model.name else {}
    digests |= task_digests(config, env)
    reads = own_sources(config)
    writer = RunWriter.start(
        config, "rl", command_line(), reads, sources=digests, with_tensors=False, ranks=hello.ranks
    )
    with writer, ExitStack() as stack:
        if writer.nothing_left:
            return 0
        intro = chain(
            introduction(config, hello, server), forecast(config, decoder, renderer, env, trains_on=hello.device)
        )
        introduce(config, "rl", writer, intro)
        tell_beginning(config, writer, hello, server)
        if writer.start_step == 0:
            tell_overlap(config, env, overlap, writer)
        if preflight is not None:
            preflight.tell(writer)
        stack.callback(env.close_workers)
        env.progress = writer.display.doing
        env.start_workers(config.orchestrator.batch_size)
        card_at_end(config, writer, env)
        ledger = Ledger(writer.restored[1]["ledger"] if writer.restored else None)
        curriculum.restore(ledger.entries)
        curriculum.restarted = lambda step: tell_restart(writer, curriculum, step)
        policy = SteadyPolicy(
            UpdatingPolicy(server, renderer, decoder.eos_token_ids),
            config.restarts,
            config.orchestrator.client.timeout,
            writer.display.message,
            lambda reason: writer.event("restart", None, role="inference", cause=reason),
        )
        sampler = GroupSampler(config, env, renderer, policy, curriculum)
        writer.note(
            pool=curriculum.size,
            correctness=env.rubric.correctness,
            reward_ranges=env.rubric.ranges_as_lists(),
            **({"left_out": dropped} if dropped or "left_out" in writer.info else {}),
        )
        session = _session(config, writer, renderer, fixed_tokens(sampler.first(8), renderer, config.seq_len))
        transport.open(session)
        stack.callback(transport.close)
        trainer = _connected(config, transport, policy, writer, session)
        stack.callback(trainer.close)
        trainer.alive = transport.interrupt = _Alive(transport, hello, writer)

        def snapshot(checkpoint: bool) -> Snapshot:
            stage(transport.weights(trainer.version), writer.folder)
            part = trainer.part(trainer.version) if checkpoint else None
            return Snapshot({}, ledger.state(before=trainer.version), part)

        def export(folder: Path, step: int, _: Any) -> None:
            unstage(writer.folder, folder)
            renderer.save(folder)
            (folder / "README.md").write_text(card(config, step), encoding="utf-8")

        def loop(saver: Saver) -> Ending:
            watch = ScoreWatch(band_of(config, server.backend), config.gap.action, writer)
            recorder = RunRecorder(writer, saver, watch, failure_watch(config, writer))
            evaluation = make_evaluate(config, env, renderer, policy, recorder.phase, recorder.evaluated)
            trainer.publisher.start()
            return SplitLoop(config, sampler, policy, trainer, ledger, recorder, watch, evaluation).train()

        ending, code = run_saved(config, writer, trainer, export, snapshot, loop, planned=True)
    print(last_lines(config, writer, trainer.version, ending, "", config.orchestrator.env))
    return code


def with_trainer(config: RLConfig, hello: Hello) -> RLConfig:
    """The config with the trainer's own settings: one that was started alone has them from a file of its own."""
    settings = TrainerConfig.model_validate(hello.settings | {"ranks": hello.ranks})
    return config.model_copy(update={"trainer": settings})


def command_line() -> list[str]:
    """The command that the user typed: that of the launcher, if there is one."""
    return json.loads(os.environ[LAUNCHED]) if os.environ.get(LAUNCHED) else sys.argv


def the_trainer(transport: FileTransport) -> Hello:
    """Waits for the trainer of the run, and says so when that takes long."""
    began, found = time.monotonic(), transport.hello(timeout=2.0)
    while found is None:
        print(f"Waiting for a trainer at {transport.path} ({time.monotonic() - began:.0f} s)", flush=True)
        found = transport.hello(timeout=30.0)
    return found


def the_server(config: RLConfig, renderer: ChatRenderer, transport: FileTransport, parameters: int) -> Server:
    """The server to sample from, once it answers. UserError if it serves something else."""
    client = config.orchestrator.client
    key = api_key(client.api_key_var, "--orchestrator.client.api-key-var")
    # One that died is waited for here, and so not tried again by the client.
    endpoint = Endpoint(config.server_url, key, timeout=client.timeout, max_retries=min(client.max_retries, 1))
    wait_for_server(endpoint, client.timeout, lambda text: print(text, flush=True))
    found = reach(endpoint, config.model.name, renderer, config.seq_len, transport.weights_root / "none", parameters)
    return replace(found, endpoint=endpoint)


def introduction(config: RLConfig, hello: Hello, server: Server) -> Iterator[str]:
    """What is about to run, and where."""
    orch = config.orchestrator
    prompts, ranks = orch.batch_size // orch.rollouts_per_example, hello.ranks
    yield (
        f"RL: {config.model.name} ({hello.parameters / 1e6:.2f}M parameters, {config.precision}) on {orch.env.id}\n"
        f"    {config.max_steps} steps x {prompts} prompts x {orch.rollouts_per_example} completions = "
        f"{config.max_steps * orch.batch_size:,} completions, into {config.output_dir}\n"
        f"    trainer: {ranks} rank{'s' if ranks > 1 else ''} on {hello.device} of {hello.host}; sampler: "
        f"{server.words}, at most {orch.max_async_level} versions behind"
    )


def tell_beginning(config: RLConfig, writer: RunWriter, hello: Hello, server: Server) -> None:
    """What the run is made by, and what was started again."""
    note_exactness(writer, config, server, hello.ranks)
    for restart in json.loads(os.environ.get(RESTARTED) or "[]"):
        writer.event("restart", writer.start_step, **restart)


def _session(config: RLConfig, writer: RunWriter, renderer: ChatRenderer, canary: tuple[int, ...]) -> Session:
    start = writer.start_step
    return Session(
        id=provenance.new_id(),
        start=start,
        checkpoint=str(writer.checkpoints.path(start).absolute()) if writer.restored else None,
        output_dir=str(config.output_dir.absolute()),
        shared=shared_values(config),
        temperature=config.orchestrator.sampling.temperature,
        canary=canary,
        lag=config.orchestrator.max_async_level,
    )


def _connected(
    config: RLConfig, transport: FileTransport, policy: SteadyPolicy, writer: RunWriter, session: Session
) -> RemoteTrainer:
    """The trainer, whose versions will be published to the server."""
    settings = config.orchestrator.eval
    evaluated = lambda version: settings is not None and version % settings.interval == 0  # noqa: E731
    own_end = FileTransport(config.transport_path)
    own_end.session(wait=False)
    publisher = Publisher(own_end, policy, session.canary, session.temperature, session.start, evaluated)
    return RemoteTrainer(transport, publisher, writer.checkpoints, session.start)


class _Alive:
    """Called in waiting for the trainer: raises UserError once that is gone, or was started anew."""

    def __init__(self, transport: FileTransport, hello: Hello, writer: RunWriter) -> None:
        self.transport, self.hello, self.writer = transport, hello, writer
        self._looked = time.monotonic()
        self._missed = False

    def __call__(self) -> None:
        # A launcher sees by itself when a trainer dies.
        if LAUNCHED in os.environ or time.monotonic() - self._looked < HELLO_SECONDS:
            return
        self._looked = time.monotonic()
        found = FileTransport(self.transport.path).hello(timeout=0)
        before, self._missed = self._missed, found is None or found.id != self.hello.id
        if before and self._missed:  # once is not enough: its last words may not have been looked for since it left
            raise UserError(
                f"the trainer (process {self.hello.pid} on {self.hello.host}) is gone, and what it had made since the "
                f"last checkpoint: start a trainer, and go on with: hone orchestrator @ "
                f"{shlex.quote(str(self.writer.folder / 'config.toml'))} --resume"
            )


STAGE = TMP_PREFIX + "weights"
"""Folder in the run for the files of a version that is about to be saved."""


def stage(weights: Path, folder: Path) -> None:
    """Keeps the files of a version that the transport may soon remove: links, or copies where there can't be any."""
    place = folder / STAGE
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for file in weights.iterdir():
        try:
            os.link(file, place / file.name)
        except OSError:
            shutil.copyfile(file, place / file.name)


def unstage(folder: Path, target: Path) -> None:
    """Moves the files that were kept into `target`."""
    for file in (folder / STAGE).iterdir():
        file.rename(target / file.name)
    (folder / STAGE).rmdir()
