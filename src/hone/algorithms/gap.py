"""The gap between the sampler's and the trainer's logprobs, and its bounds. The ratio of their probabilities weighs
every sample, so a large gap makes the gradient wrong.

Shapes: M tokens. All differences are of logprobs, in nats, sampler minus trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from hone.extension import gathered


class Verdict(IntEnum):
    """Verdict on a gap, recorded as a number."""

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


class Band(NamedTuple):
    """A gap up to `mean` and `max` is fine; a mean above `stop` ends a run. A single token never ends a run."""

    mean: float
    max: float
    stop: float

    def verdict(self, gap: Gap) -> Verdict:
        """Judge a gap; NaN is beyond every bound."""
        if not gap.mean <= self.stop:
            return Verdict.STOP
        return Verdict.OK if gap.mean <= self.mean and gap.max <= self.max else Verdict.WARN


_TINY = Band(mean=2e-3, max=5e-2, stop=2e-2)

BANDS = {
    ("hone", "fp32"): {4: Band(mean=1e-5, max=1e-5, stop=1e-3)},
    ("hone", "bf16_linear"): {
        4: _TINY,
        28: Band(mean=4e-2, max=1.0, stop=0.12),
        36: Band(mean=4.5e-2, max=1.1, stop=0.14),
    },
    ("hone", "bf16"): {
        4: _TINY,
        28: Band(mean=0.1, max=1.2, stop=0.3),
        36: Band(mean=0.12, max=1.3, stop=0.35),
    },
}
"""Bands by (backend, the lower precision of sampler and trainer) and number of layers: in bf16 each layer rounds.

Backend "hone": both sides run the same model code. 4 layers: tests/contracts/test_logprobs.py. 28 and 36 layers: wide
enough for random layers as wide as Qwen3-0.6B's (benchmarks/gap_depth.py), and for SmolLM2-135M (30 layers; its largest
gap in bf16_linear was 0.48 in 3,000 tokens of an RL step; the other maxima were widened alike, unmeasured).
"""


def band_of(backend: str, precision: str, layers: int) -> Band:
    """Return the band for a number of layers: interpolated linearly in `BANDS`, extrapolated beyond its last row."""
    rows = [(count, Band(*band)) for count, band in gathered("BANDS", BANDS)[backend, precision].items()]
    if len(rows) == 1:
        return rows[0][1]
    (low, narrow), (high, wide) = rows[:2] if layers < rows[1][0] else rows[-2:]
    share = max(0.0, (layers - low) / (high - low))
    return Band(*(a + share * (b - a) for a, b in zip(narrow, wide, strict=True)))
