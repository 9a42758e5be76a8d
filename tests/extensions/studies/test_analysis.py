"""The statistics of a study, against scipy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import study_errors
from scipy import stats

from hone.evaluation.intervals import Interval
from hone.extensions.studies.analysis import Effect, at_equal_cost, effects, holm

SEEDS = np.array([0.03, 0.05, 0.01, 0.06])


def crossed(of_seeds: float, of_examples: float, noise: float, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    """Return differences [seeds, examples] without an effect: seeds, examples and noise are random."""
    stream, (seeds, examples) = np.random.default_rng(seed), shape
    d_SE = of_seeds * stream.standard_normal((seeds, 1)) + of_examples * stream.standard_normal((1, examples))
    return d_SE + noise * stream.standard_normal(shape)


def effect(d_SE: np.ndarray, comparisons: int = 1) -> Effect:
    """The effect of these differences, as one of several that are compared."""
    return effects([(np.zeros_like(d_SE), d_SE)] * comparisons)[0]


def test_where_only_seeds_or_only_examples_scatter_p_is_that_of_students_test():
    over_seeds = np.tile(SEEDS[:, None], (1, 50))
    assert effect(over_seeds).p == pytest.approx(stats.ttest_1samp(SEEDS, 0)[1])
    over_examples = np.tile(np.linspace(-0.9, 1.1, 50), (4, 1))
    assert effect(over_examples).p == pytest.approx(stats.ttest_1samp(over_examples[0], 0)[1])
    for d_SE in (over_seeds[:1], over_seeds[:, :1]):
        one = effect(d_SE)
        assert one.p is one.p_corrected is one.detectable is one.interval is None
    nothing = effect(np.zeros((3, 5)))
    assert (nothing.p, nothing.interval, nothing.detectable) == (1.0, Interval(0.0, 0.0), 0.0)
    assert effect(np.full((3, 5), 0.1)).p == 0.0


def test_seeds_and_examples_add_up_and_noise_counts_once():
    d_SE = np.array([[0.1, 0.5, 0.4, 0.2], [0.3, 0.9, 0.4, 0.4], [0.2, 0.4, 0.7, 0.3]])
    rows, columns = d_SE.mean(axis=1), d_SE.mean(axis=0)
    of_seeds, of_examples = rows.var(ddof=1) / 3, columns.var(ddof=1) / 4
    rest = d_SE - rows[:, None] - columns + d_SE.mean()
    variance = of_seeds + of_examples - (rest**2).sum() / 6 / 12
    assert variance > max(of_seeds, of_examples)
    freedom = variance**2 / (of_seeds**2 / 2 + of_examples**2 / 3)
    half = max(stats.t.ppf(0.975, freedom) * variance**0.5, stats.t.ppf(0.975, 2) * of_seeds**0.5)
    interval = effect(d_SE).interval
    assert interval and (interval.low, interval.high) == pytest.approx((d_SE.mean() - half, d_SE.mean() + half))


def test_seeds_that_agree_by_chance_are_no_surer_than_their_examples():
    d_SE = np.array([[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
    assert d_SE.mean(axis=1).tolist() == [0.5, 0.5, 0.5]
    error = np.sqrt(d_SE.mean(axis=0).var(ddof=1) / 4)
    assert effect(d_SE).p == pytest.approx(2 * stats.t.sf(0.5 / error, 3))


@pytest.mark.parametrize("sds", [(0.01, 0.3, 0.3), (0.05, 0.05, 0.05)])
def test_no_effect_is_called_one_in_5_of_100_studies_and_the_detectable_one_found_in_80(sds: tuple):
    row = study_errors.measure(3, sds, 2000)
    assert row["false_positives"] <= 0.06 and row["found"] == pytest.approx(0.8, abs=0.04)


def test_more_comparisons_make_the_detectable_effect_larger():
    d_SE = crossed(0.02, 0.1, 0.1, (5, 50))
    assert (effect(d_SE, comparisons=5).detectable or 0) > 1.2 * (effect(d_SE).detectable or 0) > 0


def test_holm_is_that_of_the_book():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0]) and holm([]) == []


def test_verdicts():
    base = np.random.default_rng(1).random((5, 40))
    shift = np.linspace(-0.002, 0.002, 5)[:, None]
    up, down, same = (base + shift + move for move in (0.1, -0.1, 0.0005))
    helps, hurts, nothing = effects([(base, up), (base, down), (base, same)])
    assert (helps.verdict, hurts.verdict, nothing.verdict) == ("helps", "hurts", "no difference seen")
    assert helps.mean == pytest.approx(0.1) and helps.interval is not None
    assert 0.098 < helps.interval.low < 0.1 < helps.interval.high < 0.102
    (alone,) = effects([(base[:1], up[:1])])
    assert alone.verdict == "one seed: no test" and (alone.seeds, alone.examples) == (1, 40)
    assert effects([(base[:, :1], up[:, :1])])[0].verdict == "one example: no test"


def test_equal_cost_is_read_between_points_only():
    assert at_equal_cost([100, 10000], [0.2, 0.6], 1000) == pytest.approx(0.4)
    assert at_equal_cost([100, 100, 1000], [0.1, 0.3, 0.5], 100) == pytest.approx(0.2)
    assert at_equal_cost([100, 1000], [0.2, 0.6], 99) is None and at_equal_cost([], [], 1) is None
