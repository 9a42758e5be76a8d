"""What the cells of a study differ by, and how sure that is. Pure functions of arrays, without files.

Seeds are the independent draws: what a change is worth differs from seed to seed, and examples only tell how well each
run was measured. So a verdict takes the differences of the seeds' means, paired by seed, and Student's t; the interval
of an effect is a bootstrap that draws seeds and then examples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from hone import rng
from hone.errors import UserError
from hone.evaluation.intervals import Interval

ALPHA, POWER = 0.05, 0.8
"""Chance of a false verdict in the whole study, and of seeing an effect that is there."""
DRAWS = 4000
"""Draws of the bootstrap."""
FARTHEST = 2.0
"""A fitted curve is not read beyond so many times its largest x."""

Verdict = Literal["helps", "hurts", "no difference seen", "one seed: no verdict"]


@dataclass(frozen=True)
class Effect:
    """The difference of a cell from the baseline.

    `p` is two-sided, as if this were the only comparison; `holm` is corrected for all of the study. `visible` is the
    smallest effect that so many seeds would have shown in four of five studies, given how they scatter.
    """

    mean: float
    interval: Interval | None
    p: float | None
    holm: float | None
    visible: float | None
    verdict: Verdict


def effects(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Effect]:
    """Compare (baseline, cell) pairs, [seeds, examples] of the same seeds and examples; p is corrected over all."""
    differences = [other_SE - baseline_SE for baseline_SE, other_SE in pairs]
    tested = [paired_test(d_SE.mean(axis=1)) for d_SE in differences]
    corrected = iter(holm([p for p, _ in tested if p is not None]))
    found = []
    for d_SE, (p, visible) in zip(differences, tested, strict=True):
        adjusted, mean = None if p is None else next(corrected), float(d_SE.mean())
        verdict: Verdict = "one seed: no verdict"
        if adjusted is not None:
            verdict = "no difference seen" if adjusted >= ALPHA else "helps" if mean > 0 else "hurts"
        found.append(Effect(mean, bootstrap(d_SE), p, adjusted, visible, verdict))
    return found


def paired_test(d_S: np.ndarray) -> tuple[float | None, float | None]:
    """Return p of Student's paired t test on the differences of seeds, and the effect that it sees with `POWER`.

    Both are None for one seed. Seeds that agree to the last digit have p = 0, or 1 if there is no difference.
    """
    seeds = len(d_S)
    if seeds < 2:
        return None, None
    from scipy.special import stdtr, stdtrit

    error = float(d_S.std(ddof=1)) / math.sqrt(seeds)
    visible = float(stdtrit(seeds - 1, 1 - ALPHA / 2) + stdtrit(seeds - 1, POWER)) * error
    mean = abs(float(d_S.mean()))
    if error < 1e-12:
        return (0.0 if mean > 1e-12 else 1.0), 0.0
    return float(2 * stdtr(seeds - 1, -mean / error)), visible


def holm(p: Sequence[float]) -> list[float]:
    """Correct p values for their number (Holm, 1979): the chance of any false verdict stays below the limit."""
    order, worst = np.argsort(p), 0.0
    corrected = [0.0] * len(p)
    for rank, index in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = worst
    return corrected


def bootstrap(d_SE: np.ndarray, draws: int = DRAWS) -> Interval | None:
    """Return the 95 % interval of the mean: each draw takes seeds, and then examples, with replacement.

    The same draws every time. None for fewer than two examples.
    """
    seeds, examples = d_SE.shape
    if examples < 2:
        return None
    stream = rng.stream(0, "study", "bootstrap")
    means = np.empty(draws)
    for i in range(draws):
        chosen = stream.integers(examples, size=examples)
        means[i] = d_SE[stream.integers(seeds, size=seeds)][:, chosen].mean()
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(low), float(high))


@dataclass(frozen=True)
class Curve:
    """y = limit - drop · x^-rate, a saturating power law, fitted to points. `error` is the root mean square of what is
    left, `unseen` that of points which were left out of the fit, each in turn.
    """

    limit: float
    drop: float
    rate: float
    error: float
    unseen: float
    lowest: float
    highest: float

    def at(self, x: float) -> float:
        """Return y. Raises UserError below the lowest x that was measured, or above `FARTHEST` times the highest."""
        if not self.lowest <= x <= FARTHEST * self.highest:
            raise UserError(
                f"x = {x:g} is beyond what was measured ({self.lowest:g} to {self.highest:g}): the curve is read up to "
                f"{FARTHEST:g} times that"
            )
        return self.limit - self.drop * x**-self.rate


def fit_curve(x: ArrayLike, y: ArrayLike) -> Curve | None:
    """Fit the curve to points; None for fewer than four different x > 0, or if no curve of that form fits."""
    points = np.stack([np.asarray(x, np.float64), np.asarray(y, np.float64)], axis=1)
    points = points[points[:, 0] > 0]
    if len(np.unique(points[:, 0])) < 4 or (whole := _fitted(points)) is None:
        return None
    left = []
    for i in range(len(points)):
        if (part := _fitted(np.delete(points, i, axis=0))) is not None:
            left.append(points[i, 1] - _law(points[i, 0], *part))
    error = math.sqrt(float(np.mean((points[:, 1] - _law(points[:, 0], *whole)) ** 2)))
    unseen = math.sqrt(float(np.mean(np.square(left)))) if left else math.inf
    limit, drop, rate = map(float, whole)
    return Curve(limit, drop, rate, error, unseen, float(points[:, 0].min()), float(points[:, 0].max()))


def _law(x: np.ndarray, limit: float, drop: float, rate: float) -> np.ndarray:
    return limit - drop * x**-rate


def _fitted(points: np.ndarray) -> np.ndarray | None:
    from scipy.optimize import curve_fit

    x, y = points.T
    begin = (float(y.max()), float(y.max() - y.min()) * float(x.min()) ** 0.5, 0.5)
    try:
        return curve_fit(_law, x, y, p0=begin, bounds=((-np.inf, -np.inf, 0.01), (np.inf, np.inf, 5.0)))[0]
    except RuntimeError:  # it did not converge
        return None


def at_equal_cost(costs: Sequence[float], values: Sequence[float], cost: float) -> float | None:
    """Return the value that a method would have at `cost`, between its own points; None outside of them.

    Linear in the logarithm of the cost. Of several points at one cost the mean counts.
    """
    places = sorted({one for one in costs if one > 0})
    if not places or not places[0] <= cost <= places[-1]:
        return None
    means = [float(np.mean([v for c, v in zip(costs, values, strict=True) if c == place])) for place in places]
    return float(np.interp(math.log(cost), np.log(places), means))
