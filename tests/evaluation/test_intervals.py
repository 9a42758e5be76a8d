from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from hone import rng
from hone.evaluation.intervals import (
    Interval,
    bounded_interval,
    mean_interval,
    pass_at_k,
    pass_at_ks,
    share_interval,
    wilson,
)


def arrays(*rows):
    return [np.array(row, dtype=np.float64) for row in rows]


def test_with_equal_counts_it_is_students_interval_over_the_means_of_the_examples():
    values = rng.stream(0, "values").random((12, 4))
    interval = mean_interval(list(values))
    expected = stats.ttest_1samp(values.mean(axis=1), 0.0).confidence_interval(0.95)
    assert interval.low == pytest.approx(expected.low, abs=1e-12)
    assert interval.high == pytest.approx(expected.high, abs=1e-12)


def test_unequal_counts_centre_on_the_mean_of_all_values():
    values = arrays([1.0, 1.0, 1.0], [0.0], [], [0.5, 0.0])
    interval = mean_interval(values)
    assert (interval.low + interval.high) / 2 == pytest.approx(3.5 / 6)
    # by hand: deviations 3·5/12 = 1.25, -7/12, -2/3; s² = 3/2 · (1.5625 + 0.340278 + 0.444444) / 36
    half = stats.t.ppf(0.975, 2) * np.sqrt(1.5 * (1.25**2 + (7 / 12) ** 2 + (2 / 3) ** 2)) / 6
    assert (interval.high - interval.low) / 2 == pytest.approx(half)


def test_one_example_has_no_interval():
    assert mean_interval(arrays([0.1, 0.9, 0.4])) is None
    assert mean_interval([]) is None
    assert share_interval(arrays([], [])) is None


def test_wilson_agrees_with_scipy():
    for successes, n in ((0, 10), (3, 17), (10, 10), (50, 100)):
        expected = stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
        got = wilson(successes, n)
        assert (got.low, got.high) == (pytest.approx(expected.low, abs=1e-9), pytest.approx(expected.high, abs=1e-9))


def test_a_share_of_several_completions_is_clustered_and_clipped():
    hits = arrays([1, 1], [1, 1], [1, 1], [1, 1], [1, 0], [0, 0])
    raw = mean_interval(hits)
    assert raw.low > 0.0 and raw.high > 1.0
    clipped = share_interval(hits)
    assert (clipped.low, clipped.high) == (raw.low, 1.0)


def test_a_share_on_which_all_examples_agree_still_has_a_width():
    assert share_interval(arrays([1, 1], [1, 1], [1, 1])) == wilson(3, 3)
    assert share_interval(arrays([1, 0, 0], [0, 1, 0])) == wilson(2 / 3, 2)
    assert share_interval(arrays([1, 0])) == wilson(0.5, 1)


def test_a_reward_of_0_or_1_has_the_interval_of_a_share():
    rewards = arrays([1], [1], [1], [0], [1], [1])
    assert mean_interval(rewards).high > 1.0, "Student's t leaves the range"
    expected = stats.binomtest(5, 6).proportion_ci(0.95, method="wilson")
    got = bounded_interval(rewards, 0.0, 1.0)
    assert (got.low, got.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    signs = bounded_interval([2 * v - 1 for v in rewards], -1.0, 1.0)
    assert (signs.low, signs.high) == (pytest.approx(2 * got.low - 1), pytest.approx(2 * got.high - 1))
    several = arrays([1, 1], [1, 1], [1, 0], [1, 1])
    assert bounded_interval(several, 0.0, 1.0) == share_interval(several)


@pytest.mark.parametrize("per_example", [1, 4])
@pytest.mark.parametrize("values", [[0.0, 1.0], [0.0, 0.1, 0.9, 1.0], [-0.5, 0.0, 2.0]])
def test_no_interval_leaves_the_range_however_few_the_examples(values, per_example):
    generator = rng.stream(0, "bounded")
    for trial in range(200):
        shape = (int(generator.integers(2, 9)), per_example)
        rewards = list(generator.choice(values, size=shape, p=[0.05] * (len(values) - 1) + [1.05 - 0.05 * len(values)]))
        interval, mean = bounded_interval(rewards, min(values), max(values)), float(np.mean(rewards))
        assert min(values) <= interval.low <= mean + 1e-9 and mean - 1e-9 <= interval.high <= max(values), trial
        assert bounded_interval(rewards, -99.0, 99.0) == mean_interval(rewards), "far from its ends it is Student's"


def test_equal_rewards_have_no_width_and_one_example_no_interval():
    assert bounded_interval(arrays([1], [1], [1]), 0.0, 1.0) == Interval(1.0, 1.0)
    assert bounded_interval(arrays([1, 0]), 0.0, 1.0) is None


@pytest.mark.parametrize(("n", "correct"), [(1, 0), (1, 1), (6, 0), (6, 2), (6, 5), (6, 6)])
def test_it_is_the_share_of_subsets_with_a_correct_completion(n: int, correct: int):
    hits = [True] * correct + [False] * (n - correct)
    for k in range(1, n + 1):
        subsets = list(combinations(hits, k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_examples_with_too_few_graded_completions_are_left_out_of_that_k():
    assert pass_at_ks([(4, 0), (1, 1), (0, 0)], 4) == {1: 0.5, 2: 0.0, 4: 0.0}
    assert pass_at_ks([(0, 0)], 2) == {}
