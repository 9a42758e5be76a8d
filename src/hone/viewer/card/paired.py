"""Before and after on the same examples: how sure the difference is.

Both measurements meet the same examples, so that what makes one hard is in both and leaves their difference. Examples
are the independent draws: what several completions of one say is averaged first.

Needs numpy alone: scipy.stats, whose `bootstrap` and `binomtest` the tests compare with, takes longer to import than
all of a card.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hone import rng
from hone.evaluation.intervals import Interval, wilson

RESAMPLES = 5_000
LEAST = 6
"""Examples that have to change to show a difference: if all of five get better, a sign test has p = 2 / 2**5 > 0.05."""
_AT_ONCE = 2**20
"""Drawn examples that are held in memory at a time."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Level:
    """A mean over examples, with its 95 % interval: None where nothing tells how sure it is."""

    mean: float
    interval: Interval | None


@dataclass(frozen=True)
class Change:
    """A mean before and after, over the `count` examples that were measured both times, and what it changed by; `moved`
    of them have another value than before.
    """

    before: Level
    after: Level
    difference: Level
    count: int
    moved: int

    @property
    def sure(self) -> bool:
        """Whether the interval of the difference leaves out 0, and at least `LEAST` examples changed: with fewer the
        bootstrap is too sure of itself. Examples that all changed by the same leave no interval, and no doubt.
        """
        if self.moved < LEAST:
            return False
        interval = self.difference.interval
        return interval is None or not interval.low <= 0.0 <= interval.high


@dataclass(frozen=True)
class Turned:
    """Examples by what became of them: `right`, now correct and not before; `wrong`, the reverse; and those that stayed
    one or the other. `p` is McNemar's exact test: how often as many or more would turn one way by chance.
    """

    right: int
    wrong: int
    stayed_right: int
    stayed_wrong: int

    @property
    def p(self) -> float:
        return mcnemar(self.right, self.wrong)


def turned(before: Mapping[int, bool], after: Mapping[int, bool]) -> Turned:
    """What became of the examples that are in both, by whether they were correct."""
    pairs = [(before[key], after[key]) for key in sorted(before.keys() & after.keys())]
    return Turned(
        right=pairs.count((False, True)),
        wrong=pairs.count((True, False)),
        stayed_right=pairs.count((True, True)),
        stayed_wrong=pairs.count((False, False)),
    )


def mcnemar(right: int, wrong: int) -> float:
    """McNemar's exact test, two-sided: the binomial test of `right` among those that turned, p = 1/2 (McNemar, 1947).

    Computed in whole numbers, so that small ones don't vanish.
    """
    count, fewer = right + wrong, min(right, wrong)
    term = tail = 1
    for i in range(fewer):
        term = term * (count - i) // (i + 1)
        tail += term
    return min(1.0, 2 * tail / 2**count)


Values = Mapping[int, float]
"""A measured value by example."""


def changes(measured: Mapping[str, tuple[Values, Values]], seed: int, shares: Sequence[str] = ()) -> dict[str, Change]:
    """The change of each measure, from (before, after). One without an example that is in both is absent.

    Measures of the same examples are resampled together. Those named in `shares` lie in [0, 1]: a level at which all
    examples agree has Wilson's interval.
    """
    together: dict[tuple[int, ...], list[str]] = {}
    for name, (before, after) in measured.items():
        if both := tuple(sorted(before.keys() & after.keys())):
            together.setdefault(both, []).append(name)
    found: dict[str, Change] = {}
    for examples, names in together.items():
        columns = []
        for name in names:
            before, after = (np.array([values[e] for e in examples], dtype=np.float64) for values in measured[name])
            columns += [before, after, after - before]
        values_EM = np.stack(columns, axis=1)
        intervals = bootstrap(values_EM, rng.stream(seed, "card", "bootstrap", len(examples)))
        for i, name in enumerate(names):
            before, after, difference = (
                _level(values_EM[:, j], intervals[j], name in shares and j < 3 * i + 2) for j in range(3 * i, 3 * i + 3)
            )
            moved = int(np.count_nonzero(np.abs(values_EM[:, 3 * i + 2]) > 1e-12))
            found[name] = Change(before, after, difference, len(examples), moved)
    return {name: found[name] for name in measured if name in found}


def levels(measured: Mapping[str, Values], seed: int, shares: Sequence[str] = ()) -> dict[str, Level]:
    """The mean of each measure with its interval, as in `changes`. One without an example is absent."""
    alike = {name: (values, values) for name, values in measured.items()}
    return {name: change.after for name, change in changes(alike, seed, shares).items()}


def _level(values_E: np.ndarray, interval: Interval | None, share: bool) -> Level:
    mean = float(values_E.mean())
    if interval is None and share:
        interval = wilson(float(values_E.sum()), len(values_E))
    return Level(mean, interval)


def bootstrap(values_EM: np.ndarray, generator: np.random.Generator) -> list[Interval | None]:
    """The 95 % interval of the mean over examples of each measure, by the bias-corrected and accelerated bootstrap.

    `values_EM` `[examples, measures]`; examples are drawn with replacement, all measures of one together. None for a
    measure in which examples don't differ, and for fewer than two examples. (Efron, 1987)
    """
    count, measures = values_EM.shape
    means_M = values_EM.mean(axis=0)
    differs_M = np.ptp(values_EM, axis=0) > 1e-12
    if count < 2 or not differs_M.any():
        return [None] * measures
    resampled_RM = _resampled(values_EM - means_M, generator)
    return [
        _bca(values_EM[:, m] - means_M[m], resampled_RM[:, m], float(means_M[m])) if differs_M[m] else None
        for m in range(measures)
    ]


def _resampled(centred_EM: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Means of the resamples `[resamples, measures]`, minus the mean of all."""
    count = len(centred_EM)
    rows = max(1, min(RESAMPLES, _AT_ONCE // count))
    parts = []
    for start in range(0, RESAMPLES, rows):
        size = min(rows, RESAMPLES - start)
        drawn = generator.integers(count, size=(size, count), dtype=np.int64)
        drawn += np.arange(size, dtype=np.int64)[:, None] * count
        times = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        parts.append(times.astype(np.float64) @ centred_EM / count)
    return np.concatenate(parts)


def _bca(centred_E: np.ndarray, resampled_R: np.ndarray, mean: float) -> Interval:
    """`resampled_R` are means of resamples of the values, all minus their mean."""
    tiny = 1e-9 * float(np.abs(centred_E).max())
    below = np.count_nonzero(resampled_R < -tiny) + np.count_nonzero(np.abs(resampled_R) <= tiny) / 2
    share = min(max(below / len(resampled_R), 0.5 / len(resampled_R)), 1 - 0.5 / len(resampled_R))
    bias = _NORMAL.inv_cdf(share)
    # Of a mean the jackknife's values are linear in the values.
    acceleration = float((centred_E**3).sum()) / (6 * float((centred_E**2).sum()) ** 1.5)
    ends = []
    for quantile in (0.025, 0.975):
        shifted = bias + _NORMAL.inv_cdf(quantile)
        stretched = 1 - acceleration * shifted
        at = _NORMAL.cdf(bias + shifted / stretched) if stretched > 0 else float(shifted > 0)
        ends.append(mean + float(np.quantile(resampled_R, at)))
    return Interval(*ends)


def odds_words(p: float) -> str:
    """A p-value as it is written: `p = 0.031`, `p < 0.0001`, `p < 1e-20`."""
    if p >= 0.0001:
        return f"p = {p:.2g}" if p < 0.095 else f"p = {p:.2f}"
    exponent = math.floor(math.log10(p)) if p > 0 else -300
    return "p < 0.0001" if exponent > -8 else f"p < 1e{exponent + 1}"
