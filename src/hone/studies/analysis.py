"""What the cells of a study differ by, and a test of it. Pure functions of arrays, without files.

Seeds are the independent draws: what a change is worth differs from seed to seed, and examples only tell how well each
run was measured. So the test takes the differences of the seeds' means, paired by seed, and Student's t.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from hone import rng
from hone.errors import UserError
from hone.evaluation.intervals import Z95, Interval

ALPHA, POWER = 0.05, 0.8
"""Chance of a false verdict in the whole study, and of seeing an effect that is there."""
DRAWS = 4000
"""Draws of the bootstrap."""
FARTHEST = 2.0
"""A fitted curve is not read beyond so many times its largest x."""
RATES = 0.02, 4.0
"""Rates of a curve that levels off within what was measured: slower is a line, faster a step."""

Verdict = Literal["helps", "hurts", "no difference seen", "one seed: no test"]


@dataclass(frozen=True)
class Effect:
    """The difference of a cell from the baseline, over the seeds that both have.

    `p` is two-sided, as if this were the only comparison; `p_corrected` is corrected for all of the study. `detectable`
    is the effect that four of five such studies would find, if seeds scatter as they did here.
    """

    mean: float
    seeds: int
    interval: Interval | None
    p: float | None
    p_corrected: float | None
    detectable: float | None
    verdict: Verdict


def effects(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Effect]:
    """Compare (baseline, cell) pairs, [seeds, examples] of the same seeds and examples; p is corrected over all."""
    differences = [other_SE - baseline_SE for baseline_SE, other_SE in pairs]
    tested = [paired_test(d_SE) for d_SE in differences]
    corrected = iter(holm([p for p in tested if p is not None]))
    found = []
    for d_SE, p in zip(differences, tested, strict=True):
        p_corrected, mean = None if p is None else next(corrected), float(d_SE.mean())
        verdict: Verdict = "one seed: no test"
        if p_corrected is not None:
            verdict = "no difference seen" if p_corrected >= ALPHA else "helps" if mean > 0 else "hurts"
        found.append(
            Effect(mean, len(d_SE), bootstrap(d_SE), p, p_corrected, detectable(d_SE, len(differences)), verdict)
        )
    return found


def standard_error(d_SE: np.ndarray) -> float:
    """Return the standard error of the mean difference: that of seeds, or of examples if seeds scatter less than that.

    Seeds may agree by chance, for means of few examples take few values; how well each is measured bounds them.
    """
    seeds, examples = d_SE.shape
    of_seeds = float(d_SE.mean(axis=1).std(ddof=1)) / math.sqrt(seeds) if seeds > 1 else 0.0
    of_examples = float(np.mean(d_SE.var(axis=1, ddof=1))) if examples > 1 else 0.0
    return max(of_seeds, math.sqrt(of_examples / (seeds * examples)))


def paired_test(d_SE: np.ndarray) -> float | None:
    """Return p of Student's paired t test over seeds; None for one seed."""
    seeds, error, mean = len(d_SE), standard_error(d_SE), abs(float(d_SE.mean()))
    if seeds < 2:
        return None
    from scipy.special import stdtr

    if error < 1e-12:  # all examples of all seeds differ by the same
        return 1.0 if mean < 1e-12 else 0.0
    return float(2 * stdtr(seeds - 1, -mean / error))


def detectable(d_SE: np.ndarray, comparisons: int = 1) -> float | None:
    """Return the effect that the test finds with `POWER`, as the strictest of so many comparisons; None for one seed.

    By the noncentral t distribution, at the scatter that was measured.
    """
    if len(d_SE) < 2:
        return None
    from scipy.special import nctdtrinc, stdtrit

    freedom = len(d_SE) - 1
    return float(nctdtrinc(freedom, 1 - POWER, stdtrit(freedom, 1 - ALPHA / (2 * comparisons)))) * standard_error(d_SE)


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

    Few seeds drawn from few scatter too little, so their deviations are first widened to Student's interval. The same
    draws every time. None for fewer than two seeds or examples.
    """
    seeds, examples = d_SE.shape
    if seeds < 2 or examples < 2:
        return None
    from scipy.special import stdtrit

    wider = math.sqrt(seeds / (seeds - 1)) * float(stdtrit(seeds - 1, 0.975)) / Z95
    means_S1 = d_SE.mean(axis=1, keepdims=True)
    widened_SE = d_SE + (wider - 1) * (means_S1 - means_S1.mean())
    stream, means = rng.stream(0, "study", "bootstrap"), np.empty(draws)
    for i in range(draws):
        chosen = stream.integers(examples, size=examples)
        means[i] = widened_SE[stream.integers(seeds, size=seeds)][:, chosen].mean()
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(float(low), float(high))


@dataclass(frozen=True)
class Curve:
    """y = limit - drop · x^-rate, a saturating power law, fitted to points.

    `error` is the root mean square error of the points, `unseen` that of points which were left out of the fit, each
    in turn.
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
                f"x = {x:g} is too far from what was measured, {self.lowest:g} to {self.highest:g}: the curve is read "
                f"from {self.lowest:g} to {FARTHEST * self.highest:g}"
            )
        return self.limit - self.drop * x**-self.rate


def fit_curve(x: ArrayLike, y: ArrayLike) -> Curve | None:
    """Fit the curve to points; None for fewer than four different x > 0, or if they do not level off as it does."""
    points = np.stack([np.asarray(x, np.float64), np.asarray(y, np.float64)], axis=1)
    points = points[points[:, 0] > 0]
    if len(np.unique(points[:, 0])) < 4 or (whole := _fitted(points)) is None:
        return None
    parts = [_fitted(np.delete(points, i, axis=0)) for i in range(len(points))]
    left_out = [p[1] - _law(p[0], *part) for p, part in zip(points, parts, strict=True) if part is not None]
    error = math.sqrt(float(np.mean((points[:, 1] - _law(points[:, 0], *whole)) ** 2)))
    unseen = math.sqrt(float(np.mean(np.square(left_out)))) if len(left_out) == len(points) else math.inf
    limit, drop, rate = map(float, whole)
    return Curve(limit, drop, rate, error, unseen, float(points[:, 0].min()), float(points[:, 0].max()))


def _law(x: np.ndarray, limit: float, drop: float, rate: float) -> np.ndarray:
    return limit - drop * x**-rate


def _fitted(points: np.ndarray) -> np.ndarray | None:
    """Return (limit, drop, rate); None if there is no such curve."""
    from scipy.optimize import curve_fit

    x, y = points.T
    begin = (float(y.max()), float(y.max() - y.min()) * float(x.min()) ** 0.5, 0.5)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the covariance can't be estimated of three points, and is not used
            found = curve_fit(_law, x, y, p0=begin, bounds=((-np.inf, -np.inf, 0.01), (np.inf, np.inf, 5.0)))[0]
    except RuntimeError:  # it did not converge
        return None
    return found if RATES[0] <= found[2] <= RATES[1] else None


def at_equal_cost(costs: Sequence[float], values: Sequence[float], cost: float) -> float | None:
    """Return the value that a method would have at `cost`, between its own points; None outside of them.

    Linear in the logarithm of the cost. Of several points at one cost the mean counts.
    """
    places = sorted({one for one in costs if one > 0})
    if not places or not places[0] <= cost <= places[-1]:
        return None
    means = [float(np.mean([v for c, v in zip(costs, values, strict=True) if c == place])) for place in places]
    return float(np.interp(math.log(cost), np.log(places), means))
