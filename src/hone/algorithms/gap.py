"""How far apart sampler and trainer are, and whether that is too far. The ratio of their probabilities weighs every
sample, so a gap that nobody looks at is a wrong gradient that nobody sees.

Shapes: M tokens, V vocabulary. All differences are of logprobs, in nats, sampler minus trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch


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
    """Up to `mean` and `max` a gap is fine; a mean beyond `stop` is no rounding. A single token never stops a run.

    `rounding` is a mean that rounding can make: `mean`, if not given. What a user allows doesn't change it.
    """

    mean: float
    max: float
    stop: float
    rounding: float = -1.0

    def __post_init__(self) -> None:
        if self.rounding < 0:
            object.__setattr__(self, "rounding", self.mean)

    def verdict(self, gap: Gap) -> Verdict:
        """What is not a number is beyond every bound."""
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


def fit_temperature(
    logits_MV: torch.Tensor, tokens_M: torch.Tensor, logprobs_M: torch.Tensor, low: float = 0.1, high: float = 10.0
) -> tuple[float, torch.Tensor]:
    """The T for which log softmax(logits / T) is nearest to these logprobs of the tokens, and the |Δ| `[M]` left then.

    A grid, then golden sections around its best point; 1e-4 of T is left open.
    """

    def left_M(temperature: float) -> torch.Tensor:
        scaled_MV = torch.log_softmax(logits_MV / temperature, dim=-1)
        return (scaled_MV.gather(1, tokens_M[:, None]).squeeze(1) - logprobs_M).abs()

    def left(temperature: float) -> float:
        return float(left_M(temperature).mean())

    grid = np.geomspace(low, high, 65)
    best = int(np.argmin([left(float(t)) for t in grid]))
    a, b = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, len(grid) - 1)])
    golden = (5**0.5 - 1) / 2
    while b - a > 1e-4 * a:
        c, d = b - golden * (b - a), a + golden * (b - a)
        a, b = (a, d) if left(c) < left(d) else (c, b)
    temperature = (a + b) / 2
    return temperature, left_M(temperature)


def fit_truncation(
    logprobs_MV: torch.Tensor, tokens_M: torch.Tensor, sampled_M: torch.Tensor
) -> tuple[str, float, torch.Tensor]:
    """(`top_k`, `top_p` or `min_p`, its value, the |Δ| `[M]` left) of the cut whose renormalised logprobs are nearest.

    With what a cut leaves of a distribution being m of its mass, a token's logprob rises by -log m: at each position by
    the same for all tokens. `logprobs_MV` are the trainer's, `sampled_M` the sampler's of `tokens_M`.
    """
    sorted_MV = logprobs_MV.sort(dim=-1, descending=True).values
    mass_MV = sorted_MV.double().exp().cumsum(-1)
    rise_M = sampled_M - logprobs_MV.gather(1, tokens_M[:, None]).squeeze(1)
    ratio_MV = (sorted_MV - sorted_MV[:, :1]).exp()

    def left_M(kept_M: torch.Tensor) -> torch.Tensor:
        return (rise_M + mass_MV.gather(1, kept_M[:, None] - 1).squeeze(1).log()).abs()

    count = mass_MV.shape[1]
    tries: list[tuple[str, float, torch.Tensor]] = []
    for k in range(1, min(count, 256)):
        tries.append(("top_k", k, torch.full_like(tokens_M, k)))
    for share in (*(i / 100 for i in range(5, 100)), 0.995, 0.999):
        tries.append(("top_p", share, ((mass_MV < share).sum(-1) + 1).clamp(max=count)))
    for floor in (0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
        tries.append(("min_p", floor, (ratio_MV >= floor).sum(-1)))
    name, value, kept_M = min(tries, key=lambda this: float(left_M(this[2]).mean()))
    return name, value, left_M(kept_M)
