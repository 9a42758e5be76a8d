"""The trainer of a run in mode split: it takes batches from the transport, and publishes the weights they make.

A session of the orchestrator begins with the initial model, or a checkpoint; its weights are published, then those
after every batch, each followed by a result that says so. A new session, of an orchestrator that was started again,
begins anew. On several ranks rank 0 alone sees the transport, and the others do as it says.

    hone trainer @ train.toml
    torchrun --nproc-per-node 2 src/hone/trainer/serve.py @ train.toml
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.model.decoder import Decoder
from hone.runs.faults import explain
from hone.trainer.agreement import check_agreement, check_checkpoint, checkpoint_of
from hone.trainer.export import save_policy
from hone.trainer.logprobs import loss_indices, token_logprobs
from hone.trainer.packing import Sequence, deal, pack
from hone.trainer.parallel import ALONE, Ranks, release
from hone.trainer.parts import load_part, save_part
from hone.trainer.step import Trainer
from hone.trainer.wire import from_arrays
from hone.transport import FileTransport, Hello, Order, Result, Session

T = TypeVar("T")

KEPT = 2
"""Versions of the weights that stay at least, beside those that the sampler may lag behind."""
SAY_AFTER = 60.0
"""Seconds of waiting until it is said, and again each time that it has doubled."""


class TrainerLoop:
    """Serves sessions until a run has come to its end.

    `load()` makes the initial model (each rank its shard), `make(model, temperature)` a trainer of it; `model` is one
    that was loaded before, for the hello. `place` says where `config` comes from; `say` gets a line of progress.
    """

    def __init__(
        self,
        config: RLConfig,
        transport: FileTransport,
        load: Callable[[], Decoder],
        make: Callable[[Decoder, float], Trainer],
        model: Decoder,
        place: str = "this trainer's config",
        say: Callable[[str], None] = print,
        ranks: Ranks = ALONE,
    ) -> None:
        self.config, self.transport, self.ranks = config, transport, ranks
        self.load, self.make, self.place, self.say = load, make, place, say
        self._model: Decoder | None = model
        self._trainer: Trainer | None = None
        self._patience = _Patience(transport.path, say)
        transport.interrupt = self._patience.look

    def serve(self, hello: Hello) -> int:
        """Says hello, and takes part in one session after the other; returns the version at the end of the run."""
        self._by_first(lambda: self.transport.say_hello(hello))
        session = None
        try:
            while True:
                session = self._next_session(session)
                version = self._session(session)
                if version is not None and version >= self.config.max_steps:
                    return version
        finally:
            if self.ranks.first:
                self.transport.leave()

    def _next_session(self, last: Session | None) -> Session:
        self._patience.starts("the orchestrator")
        session = self._by_first(lambda: self.transport.session(last.id if last else None))
        assert session is not None, "it was waited for"
        return session

    def _session(self, session: Session) -> int | None:
        """Serves one session; returns the version that it ended at, None if another one began."""
        trainer = self._begin(session)
        self._publish(trainer, session, {}, {"train": 0.0, "wait": 0.0})
        while True:
            began = time.perf_counter()
            self._patience.starts(f"the batch of step {trainer.version}")
            order = self._by_first(lambda: self.transport.order(trainer.version))
            waited = time.perf_counter() - began
            if order is None:
                self._tell("Another session has begun.")
                return None
            if order.kind == "end":
                self._end(trainer, session, order, waited)
                return trainer.version
            self._step(trainer, session, order, waited)

    def _begin(self, session: Session) -> Trainer:
        """The trainer as the session begins with it."""
        check_agreement(self.config, session, self.place)
        checkpoint = checkpoint_of(session)
        self._trainer = None  # its memory is that of the next one
        model = self._model or self.load()
        self._model = None
        self._trainer = trainer = self.make(model, session.temperature)
        if checkpoint is not None:
            check_checkpoint(checkpoint, trainer)
            load_part(checkpoint, trainer, session.start)
        source = checkpoint or self.config.model.name
        self._tell(f"Session {session.id} of {session.output_dir}: at version {session.start}, from {source}")
        return trainer

    def _step(self, trainer: Trainer, session: Session, order: Order, waited: float) -> None:
        began = time.perf_counter()
        device, limit = trainer.model.device, self.config.trainer.micro_batch_tokens
        sequences = from_arrays(order.arrays)
        batches = deal(sequences, limit, device, share_prompts=True, ranks=self.ranks) if sequences else []
        metrics = trainer.step(batches)
        trained = time.perf_counter() - began
        seconds = {"train": trained, "wait": waited}
        self._publish(trainer, session, metrics, seconds, order.save)
        loss = f"loss {metrics['loss']:.4g}" if "loss" in metrics else "no signal, weights as they were"
        self._tell(
            f"step {order.step}: {order.tokens:,} tokens in {trained:.2f} s, waited {waited:.2f} s for it, {loss}"
        )

    def _end(self, trainer: Trainer, session: Session, order: Order, waited: float) -> None:
        seconds = {"wait": waited}
        if order.save is not None:
            self._save(trainer, Path(order.save), seconds)
        result = Result(trainer.version, {}, trainer.fingerprint(), (), seconds, order.save is not None)
        self._by_first(lambda: self.transport.put_result(result))
        self._tell(f"The session has ended at version {trainer.version}.")
        if trainer.version < self.config.max_steps:
            self._tell(f"Waiting for another one at {self.transport.path}")

    def _publish(
        self,
        trainer: Trainer,
        session: Session,
        metrics: dict[str, float],
        seconds: dict[str, float],
        save: str | None = None,
    ) -> None:
        """Writes the weights, and the part of the checkpoint if it is wanted; then tells that they are there."""
        began, version = time.perf_counter(), trainer.version
        with ExitStack() as stack:
            folder = stack.enter_context(self.transport.weights_dir(version)) if self.ranks.first else Path()
            save_policy(folder, trainer)
        seconds["publish"] = time.perf_counter() - began
        if save is not None:
            self._save(trainer, Path(save), seconds)
        scores = canary_logprobs(trainer, session.canary)
        result = Result(version, metrics, trainer.fingerprint(), scores, seconds, save is not None)
        kept = range(version + 1 - KEPT - self.config.orchestrator.max_async_level, version + 1)

        def tell() -> None:
            self.transport.put_result(result)
            self.transport.keep(kept)

        self._by_first(tell)

    def _save(self, trainer: Trainer, folder: Path, seconds: dict[str, float]) -> None:
        """Writes the trainer's part of a checkpoint. UserError if the disk does not take it."""
        began = time.perf_counter()
        try:
            save_part(folder, trainer)
        except Exception as error:
            if (fault := explain(error, folder)) is None:
                raise
            raise UserError(
                f"the checkpoint of version {trainer.version} can't be written, {fault[0]}: {fault[1]}"
            ) from error
        seconds["save"] = time.perf_counter() - began

    def _by_first(self, action: Callable[[], T]) -> T:
        """What rank 0 gets from `action()`, on all ranks; its UserError too."""
        value: T | None = None
        error: UserError | None = None
        if self.ranks.first:
            try:
                value = action()
            except UserError as raised:
                error = raised
        value, error = self.ranks.agree((value, error))
        if error is not None:
            raise error
        return value  # pyright: ignore[reportReturnType]

    def _tell(self, text: str) -> None:
        if self.ranks.first:
            self.say(text)


@torch.no_grad()
def canary_logprobs(trainer: Trainer, canary: tuple[int, ...]) -> tuple[float, ...]:
    """Log-probability of each token but the first, given those before it, at the trainer's temperature."""
    if len(canary) < 2:
        return ()
    ids = np.array(canary, dtype=np.int64)
    batch = pack([Sequence(ids, np.arange(len(ids)) > 0)], device=trainer.model.device)
    logprobs_M, _ = token_logprobs(trainer.model, batch, loss_indices(batch), trainer.temperature)
    release(trainer.model)
    return tuple(logprobs_M.double().tolist())


class _Patience:
    """Says what is waited for, when that takes long."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path, self.say = path, say
        self.starts("the orchestrator")

    def starts(self, what: str) -> None:
        self.what, self.began, self.after = what, time.monotonic(), SAY_AFTER

    def look(self) -> None:
        waited = time.monotonic() - self.began
        if waited >= self.after:
            self.say(f"waiting for {self.what} at {self.path} ({waited:.0f} s)")
            self.after *= 2


if __name__ == "__main__":
    from hone.cli import trainer

    sys.exit(trainer())
