"""The trainer in this process, as the orchestrator sees it: it takes a step when it is given a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from hone.orchestrator.packing import micro_batches
from hone.orchestrator.types import Update
from hone.trainer.packing import Sequence as Packed
from hone.trainer.step import Trainer


class LocalTrainer:
    """`Updates` of a trainer in this process: a batch is trained on when it is put.

    Its micro-batches have at most `micro_batch_tokens` tokens. `phase` times the step.
    """

    ready = True

    def __init__(
        self,
        trainer: Trainer,
        micro_batch_tokens: int | None,
        phase: Callable[[str], AbstractContextManager[None]] = lambda name: nullcontext(),
    ) -> None:
        self.trainer, self.micro_batch_tokens = trainer, micro_batch_tokens
        self._phase = phase
        self._update: Update | None = None

    @property
    def version(self) -> int:
        return self.trainer.version - (self._update is not None)

    def put(self, step: int, sequences: Sequence[Packed]) -> dict[str, float]:
        weights = self.trainer.fingerprint()
        with self._phase("train"):
            batch = micro_batches(sequences, self.micro_batch_tokens, self.trainer.model.device)
            metrics = self.trainer.step(batch)
        self._update = Update(metrics, weights, token_stats=self.trainer.token_stats())
        return {}

    def take(self) -> Update:
        update, self._update = self._update, None
        assert update is not None, "a batch is put before its update is taken"
        return update

    def release(self, version: int) -> None: ...

    def give_up(self) -> None: ...

    def fingerprint(self) -> str:
        return self.trainer.fingerprint()
