"""The interface between the loop and the trainer, which is in this process or in others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hone.algorithms.gap import Gap
from hone.trainer.packing import Batch
from hone.trainer.token_stats import TokenStats

if TYPE_CHECKING:
    import torch

    from hone.runs.checkpoint import Tensors
    from hone.runs.saving import Saver


@dataclass(frozen=True)
class Update:
    """The result of a step: metrics, fingerprint of the weights before it, timings in seconds, token statistics."""

    metrics: dict[str, float]
    weights: str
    timings: dict[str, float] = field(default_factory=dict)
    token_stats: TokenStats | None = None


class Updates(ABC):
    """The trainer, in this process or in others.

    `version` and `fingerprint()` describe the last update taken. If `ready` is true, `take` returns at once. If `plans`
    is true, the trainer must know before an update if it makes a checkpoint (see `Saver.planned`).
    """

    plans = False
    version: int
    ready: bool

    @abstractmethod
    def start(self, saver: Saver) -> None:
        """Start the trainer. From now on `saver` saves versions, and may request a stop."""

    @abstractmethod
    def put(self, step: int, batch: Batch) -> None: ...

    @abstractmethod
    def take(self) -> Update:
        """Return the update on the oldest batch; from now on `version` includes it."""

    @abstractmethod
    def publish(self, version: int) -> Gap | None:
        """Load the current version into the sampler. Return the logprob gap, or None if it isn't measured."""

    def release(self, version: int) -> None:
        """Let the sampler load versions after `version`: the measurement of `version` is over."""
        return

    def give_up(self) -> None:
        """Publish no more versions: the run ends after the batches in flight."""
        return

    @abstractmethod
    def snapshot(self, checkpoint: bool) -> tuple[Tensors, Path | None]:
        """Return the live tensors to save and, for a `checkpoint`, the folder that other processes wrote, if any."""

    @abstractmethod
    def export(self, folder: Path, version: int, parameters: Mapping[str, torch.Tensor]) -> None:
        """Write a saved version's weights into a folder, from the `parameters` of its snapshot."""

    @abstractmethod
    def fingerprint(self) -> str: ...
