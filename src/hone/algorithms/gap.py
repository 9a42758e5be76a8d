"""How far apart sampler and trainer are, and whether that is too far. The ratio of their probabilities weighs every
sample, so a gap that nobody looks at is a wrong gradient that nobody sees.

Shapes: M tokens. All differences are of logprobs, in nats, sampler minus trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Verdict(IntEnum):
    """What a gap is judged to be; the number is the metric."""

    OK = 0
    WARN = 1
    STOP = 2


@dataclass(frozen=True)
class Gap:
    """Mean and maximum over tokens of |sampler - trainer|; NaN if a logprob is not finite."""

    mean: float
    max: float

    @classmethod
    def of(cls, differences_M: np.ndarray) -> Gap:
        absolute_M = np.abs(np.asarray(differences_M, dtype=np.float64))
        return cls(float(absolute_M.mean()), float(absolute_M.max()))

    @classmethod
    def worst(cls, gaps: Sequence[Gap]) -> Gap:
        return cls(float(np.max([gap.mean for gap in gaps])), float(np.max([gap.max for gap in gaps])))


@dataclass(frozen=True)
class Band:
    """Up to `mean` and `max` a gap is fine; a mean beyond `stop` is no rounding. A single token never stops a run."""

    mean: float
    max: float
    stop: float

    def verdict(self, gap: Gap) -> Verdict:
        """Judge a gap; NaN is beyond every bound."""
        if not gap.mean <= self.stop:
            return Verdict.STOP
        return Verdict.OK if gap.mean <= self.mean and gap.max <= self.max else Verdict.WARN


_ROUNDING = Band(mean=2e-3, max=5e-2, stop=2e-2)
_OTHER_KERNELS = Band(mean=2e-2, max=5e-1, stop=1e-1)

BANDS: dict[tuple[str, str], Band] = {
    ("hone", "fp32"): Band(mean=1e-5, max=1e-5, stop=1e-3),
    ("hone", "bf16_linear"): _ROUNDING,
    ("hone", "bf16"): _ROUNDING,
    ("vllm", "fp32"): Band(mean=1e-4, max=1e-4, stop=1e-3),
    ("vllm", "bf16_linear"): _OTHER_KERNELS,
    ("vllm", "bf16"): _OTHER_KERNELS,
}
"""By backend and by the coarser precision of the two. hone: contract 3, the same model code on both sides. vllm: other
kernels (measured with the tiny model on reverse-text: mean 8e-7 and max 1.2e-5 in fp32, 1.1e-2 and 0.18 in bf16).
"""
