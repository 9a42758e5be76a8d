"""Entropy and logprob of each loss token of a train step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hone.types import PackedBatch


@dataclass(frozen=True)
class TokenStats:
    """Statistics of K completions with M loss tokens in total, end to end in the order of the step.

    `draws`, `samples`, `lengths` `[K]` int64: draw of the completion's prompt, number of the completion in the draw,
    and number of its loss tokens. `entropies` `[M]` float16 and `logprobs` `[M]` float32, in nats, are of the sampling
    distribution, with the weights before the update.
    """

    draws: np.ndarray
    samples: np.ndarray
    lengths: np.ndarray
    entropies: np.ndarray
    logprobs: np.ndarray

    def __post_init__(self) -> None:
        assert len(self.draws) == len(self.samples) == len(self.lengths)
        assert len(self.entropies) == len(self.logprobs) == self.lengths.sum()

    @classmethod
    def of_batch(cls, batch: PackedBatch, entropies_M: torch.Tensor, logprobs_M: torch.Tensor) -> TokenStats:
        columns = zip(batch.groups, batch.samples, batch.loss_lengths, strict=True)
        draws, samples, lengths = np.array([column for column in columns if column[2]], dtype=np.int64).T
        return cls(
            draws, samples, lengths, entropies_M.to(torch.float16).cpu().numpy(), logprobs_M.float().cpu().numpy()
        )

    @classmethod
    def joined(cls, parts: Sequence[TokenStats]) -> TokenStats:
        kinds = {"draws": np.int64, "samples": np.int64, "lengths": np.int64}
        kinds |= {"entropies": np.float16, "logprobs": np.float32}
        empty = [np.zeros(0, kind) for kind in kinds.values()]
        columns = zip(empty, *(part.arrays().values() for part in parts), strict=True)
        return cls(*(np.concatenate(column) for column in columns))

    def arrays(self) -> dict[str, np.ndarray]:
        return dict(vars(self))

    def by_completion(self) -> dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]:
        """Return (draw, sample) -> (entropies, logprobs) of the completion's loss tokens."""
        stops = np.cumsum(self.lengths).tolist()
        owners = zip(self.draws.tolist(), self.samples.tolist(), stops, self.lengths.tolist(), strict=True)
        return {
            (draw, sample): (self.entropies[stop - length : stop], self.logprobs[stop - length : stop])
            for draw, sample, stop, length in owners
        }
