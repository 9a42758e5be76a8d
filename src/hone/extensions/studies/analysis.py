"""Differences between the cells of a study, and their significance.

Seeds and examples are random effects, and differences are paired by seed and example. p and interval use the same
standard error, so the interval excludes 0 exactly if p is below 0.05. benchmarks/study_errors.py measures error rates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hone import rng
from hone.evaluation.intervals import Interval

ALPHA, POWER = 0.05, 0.8
"""The chance of any false verdict in a study, and the chance of finding a real effect."""
DRAWS = 4000
"""Number of studies to simulate, to compute the power."""

Verdict = Literal["helps", "hurts", "no difference seen", "one seed: no test", "one example: no test"]


@dataclass(frozen=True)
class Effect:
    """A cell's difference from the baseline, over their common seeds and examples.

    `p` (two-sided) and `interval` (95 %) are for this comparison alone. `p_corrected`, corrected for all comparisons,
    decides the verdict. `detectable` is the effect that a study with equal scatter finds with probability `POWER`.
    """

    mean: float
    seeds: int
    examples: int
    interval: Interval | None
    p: float | None
    p_corrected: float | None
    detectable: float | None
    verdict: Verdict


def effects(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Effect]:
    """Compare (baseline, cell) pairs of arrays [seeds, examples]; p is corrected for the number of pairs."""
    differences = [other_SE - baseline_SE for baseline_SE, other_SE in pairs]
    scatters = [Scatter.of(d_SE) for d_SE in differences]
    tested = [
        None if one is None else one.p(float(d_SE.mean())) for one, d_SE in zip(scatters, differences, strict=True)
    ]
    corrected = iter(holm([p for p in tested if p is not None]))
    found = []
    for d_SE, scatter, p in zip(differences, scatters, tested, strict=True):
        (seeds, examples), mean = d_SE.shape, float(d_SE.mean())
        if scatter is None:
            untested: Verdict = "one seed: no test" if seeds < 2 else "one example: no test"
            found.append(Effect(mean, seeds, examples, None, None, None, None, untested))
            continue
        p_corrected, half = next(corrected), float(scatter.reach(ALPHA))
        verdict: Verdict = "no difference seen" if p_corrected >= ALPHA else "helps" if mean > 0 else "hurts"
        least = scatter.found_with(POWER, ALPHA / len(differences))  # Bonferroni
        interval = Interval(mean - half, mean + half)
        found.append(Effect(mean, seeds, examples, interval, p, p_corrected, least, verdict))
    return found


@dataclass(frozen=True)
class Scatter:
    """Variances of the mean of differences d = effect + seed + example + noise, over S seeds x E examples.

    `of_seeds` is the variance of the seeds' means divided by S; `of_examples` is the variance of the examples' means
    divided by E. Both contain `noise`, so their sum counts it twice. Arrays have one entry per study.
    """

    seeds: int
    examples: int
    of_seeds: np.ndarray
    of_examples: np.ndarray
    noise: np.ndarray

    @classmethod
    def of(cls, d_SE: np.ndarray) -> Scatter | None:
        """Estimate the variances from one study or many `[..., S, E]`; None with fewer than two seeds or examples."""
        seeds, examples = d_SE.shape[-2:]
        if seeds < 2 or examples < 2:
            return None
        means_S, means_E, both = d_SE.mean(axis=-1), d_SE.mean(axis=-2), (-2, -1)
        rest_SE = d_SE - means_S[..., None] - means_E[..., None, :] + d_SE.mean(axis=both, keepdims=True)
        noise = (rest_SE**2).sum(axis=both) / ((seeds - 1) * (examples - 1) * seeds * examples)
        of_seeds, of_examples = means_S.var(axis=-1, ddof=1) / seeds, means_E.var(axis=-1, ddof=1) / examples
        return cls(seeds, examples, of_seeds, of_examples, noise)

    @property
    def variance(self) -> np.ndarray:
        """The variance of the mean, with noise counted once. At least as large as `of_seeds` and `of_examples`."""
        both = self.of_seeds + self.of_examples - self.noise
        return np.maximum(both, np.maximum(self.of_seeds, self.of_examples))

    @property
    def freedom(self) -> np.ndarray:
        """The degrees of freedom of `variance` (Satterthwaite, 1946); 1 if nothing varies."""
        parts = self.of_seeds**2 / (self.seeds - 1) + self.of_examples**2 / (self.examples - 1)
        return np.where(parts > 0, self.variance**2 / np.maximum(parts, 1e-300), 1.0)

    def reach(self, alpha: float) -> np.ndarray:
        """Return half the width of the confidence interval of level 1 - alpha.

        The wider of two t intervals counts: over seeds alone, or over seeds and examples. The latter has too many
        degrees of freedom if the seeds agree by chance.
        """
        from scipy.special import stdtrit

        of_seeds = stdtrit(self.seeds - 1, 1 - alpha / 2) * np.sqrt(self.of_seeds)
        return np.maximum(of_seeds, stdtrit(self.freedom, 1 - alpha / 2) * np.sqrt(self.variance))

    def p(self, mean: float) -> float:
        """Return the two-sided p: the alpha that makes `reach` equal |mean|."""
        from scipy.special import stdtr

        if self.variance < 1e-24:  # all differences are equal
            return 1.0 if abs(mean) < 1e-12 else 0.0
        both = stdtr(self.freedom, -abs(mean) / np.sqrt(self.variance))
        of_seeds = stdtr(self.seeds - 1, -abs(mean) / np.sqrt(max(self.of_seeds, 1e-300)))
        return float(2 * max(both, of_seeds))

    def found_with(self, power: float, alpha: float) -> float:
        """Return the effect that a study with this scatter finds with probability `power`, simulated with a fixed seed.

        A simulated study finds effect x if x + error exceeds its reach. Its variances are drawn from chi-square.
        """
        stream = rng.stream(0, "study", "power")
        error = math.sqrt(self.variance) * stream.standard_normal(DRAWS)
        of_seeds = self.of_seeds * stream.chisquare(self.seeds - 1, DRAWS) / (self.seeds - 1)
        of_examples = self.of_examples * stream.chisquare(self.examples - 1, DRAWS) / (self.examples - 1)
        drawn = Scatter(self.seeds, self.examples, of_seeds, of_examples, self.noise)
        return float(np.quantile(drawn.reach(alpha) - error, power))


def holm(p: Sequence[float]) -> list[float]:
    """Correct p values for the number of tests (Holm, 1979): the chance of any false verdict stays below alpha."""
    order, worst = np.argsort(p), 0.0
    corrected = [0.0] * len(p)
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = worst
    return corrected


def at_equal_cost(costs: Sequence[float], values: Sequence[float], cost: float) -> float | None:
    """Return a method's value at `cost`, interpolated linearly in log(cost); None outside the range of `costs`.

    Points with equal cost are averaged.
    """
    places = sorted({one for one in costs if one > 0})
    if not places or not places[0] <= cost <= places[-1]:
        return None
    means = [float(np.mean([v for c, v in zip(costs, values, strict=True) if c == place])) for place in places]
    return float(np.interp(math.log(cost), np.log(places), means))
