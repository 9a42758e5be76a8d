"""95 % intervals for samples clustered by example, and pass@k.

Several completions of one example are not independent; the examples are the independent draws. Values come as one array
per example; examples without values are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054
"""The normal distribution's 97.5 % quantile."""


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float


def mean_interval(values: Sequence[np.ndarray]) -> Interval | None:
    """Compute the interval of the mean over all values, clustered by example; None with fewer than two examples.

    m ± t(0.975, E-1) · s with s² = E/(E-1) · Σ_e (Σ_i (x_ei - m))² / N², for E examples and N values in all: the
    cluster-robust variance of a mean. With equally many values per example this is Student's t interval over the
    per-example means. Its width is 0 if the means are equal.
    """
    values = [v for v in values if len(v)]
    if len(values) < 2:
        return None
    from scipy.special import stdtrit

    count = sum(len(v) for v in values)
    mean = sum(float(v.sum()) for v in values) / count
    deviations_E = np.array([float((v - mean).sum()) for v in values])
    examples = len(values)
    spread = math.sqrt(examples / (examples - 1) * float((deviations_E**2).sum())) / count
    half = float(stdtrit(examples - 1, 0.975)) * spread
    return Interval(mean - half, mean + half)


def bounded_interval(values: Sequence[np.ndarray], low: float, high: float) -> Interval | None:
    """Compute the interval of the mean of values in [low, high]; None with fewer than two examples.

    If all values are `low` or `high` (a reward of 0 or 1), the interval comes from the share of `high`. Otherwise it is
    `mean_interval` clipped to [low, high], which keeps the coverage. Its width is 0 if all values are equal.
    """
    interval = mean_interval(values)
    if interval is None:
        return None
    flat = np.concatenate(values)
    if np.ptp(flat) > 0 and (np.isclose(flat, low) | np.isclose(flat, high)).all():
        share = share_interval([np.isclose(v, high).astype(np.float64) for v in values])
        assert share is not None
        return Interval(low + (high - low) * share.low, low + (high - low) * share.high)
    return Interval(max(low, interval.low), min(high, interval.high))


def share_interval(hits: Sequence[np.ndarray]) -> Interval | None:
    """Compute the interval of the share of 1s in `hits` (0s and 1s), clustered by example; None without values."""
    hits = [v for v in hits if len(v)]
    if not hits:
        return None
    return clustered_share(np.array([float(v.sum()) for v in hits]), np.array([float(len(v)) for v in hits]))


def clustered_share(hits_E: np.ndarray, sizes_E: np.ndarray) -> Interval:
    """Compute Wilson's interval of a share with the effective number of completions, N / deff.

    An example has `sizes_E` completions, N in all, and `hits_E` of them are correct. The design effect deff is the
    cluster-robust variance of the share, divided by p(1 - p) / N (Kish, 1965). It is at least 1, and at most Σ n² / N,
    its value if all completions of each example agree. k is the number of examples with a hit or, if smaller, with a
    miss. For shares near 0 and 1, k is small, so one more example with the largest deff (most) is assumed: (k · deff +
    most) / (k + 1). With one completion per example this is Wilson's interval. Coverage: benchmarks/intervals.py.
    """
    count, examples = float(sizes_E.sum()), len(sizes_E)
    share, most = float(hits_E.sum()) / count, float((sizes_E**2).sum()) / count
    effect = most
    if examples > 1 and 0 < share < 1:
        variance = examples / (examples - 1) * float(((hits_E - share * sizes_E) ** 2).sum()) / count**2
        measured = min(max(1.0, count * variance / (share * (1 - share))), most)
        informative = min(int((hits_E > 0).sum()), int((hits_E < sizes_E).sum()))
        effect = (informative * measured + most) / (informative + 1)
    trials = count / effect
    return wilson(share * trials, trials)


def wilson(successes: float, n: float) -> Interval:
    """Compute Wilson's score interval (1927) of a share of `n` independent trials, modified for rare events.

    With at most one success the low end is -ln(0.95) · successes / n, as for a Poisson count, because Wilson's low end
    is too high there (Brown, Cai and DasGupta, 2001). With at most one failure, the high end mirrors this.
    """
    share = successes / n
    scale = 1 + Z95**2 / n
    centre = (share + Z95**2 / (2 * n)) / scale
    half = Z95 / scale * math.sqrt(max(0.0, share * (1 - share)) / n + Z95**2 / (4 * n**2))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    if 0 < successes <= 1 + 1e-9:
        low = min(low, -math.log(0.95) * share)
    if 0 < n - successes <= 1 + 1e-9:
        high = max(high, 1 + math.log(0.95) * (1 - share))
    return Interval(low, high)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Estimate pass@k from n completions of an example: 1 - C(n - correct, k) / C(n, k) (Chen et al., 2021).

    This is the share of k-subsets of the completions that contain a correct one. Needs k ≤ n.
    """
    assert 0 <= correct <= n and 1 <= k <= n, (n, correct, k)
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_at_ks(counts: Sequence[tuple[int, int]], rollouts: int) -> dict[int, float]:
    """Average pass@k over examples, k = 1, 2, 4, … ≤ `rollouts`. `counts`: (graded, correct) completions by example.

    An example with fewer than k graded completions is left out of pass@k; a k without examples is absent.
    """
    result = {}
    k = 1
    while k <= rollouts:
        values = [pass_at_k(n, correct, k) for n, correct in counts if n >= k]
        if values:
            result[k] = sum(values) / len(values)
        k *= 2
    return result
