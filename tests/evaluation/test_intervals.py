from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from hone import rng
from hone.evaluation.intervals import (
    Interval,
    bounded_interval,
    clustered_share,
    mean_interval,
    pass_at_k,
    pass_at_ks,
    share_interval,
    wilson,
)


def arrays(*rows):
    return [np.array(row, dtype=np.float64) for row in rows]


def same(interval: Interval | None, expected: Interval) -> None:
    assert interval and (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_with_equal_counts_it_is_students_interval_over_the_means_of_the_examples():
    values = rng.stream(0, "values").random((12, 4))
    interval = mean_interval(list(values))
    expected = stats.ttest_1samp(values.mean(axis=1), 0.0).confidence_interval(0.95)
    assert interval.low == pytest.approx(expected.low, abs=1e-12)
    assert interval.high == pytest.approx(expected.high, abs=1e-12)


def test_unequal_counts_centre_on_the_mean_of_all_values():
    interval = mean_interval(arrays([1.0, 1.0, 1.0], [0.0], [], [0.5, 0.0]))
    assert (interval.low + interval.high) / 2 == pytest.approx(3.5 / 6)
    # by hand: deviations 3·5/12 = 1.25, -7/12, -2/3; s² = 3/2 · (1.5625 + 0.340278 + 0.444444) / 36
    half = stats.t.ppf(0.975, 2) * np.sqrt(1.5 * (1.25**2 + (7 / 12) ** 2 + (2 / 3) ** 2)) / 6
    assert (interval.high - interval.low) / 2 == pytest.approx(half)


def test_one_example_has_no_interval_and_equal_rewards_no_width():
    assert bounded_interval(arrays([1], [1], [1]), 0.0, 1.0) == Interval(1.0, 1.0)
    assert bounded_interval(arrays([1, 0]), 0.0, 1.0) is None
    assert mean_interval(arrays([0.1, 0.9, 0.4])) is None
    assert mean_interval([]) is None
    assert share_interval(arrays([], [])) is None


def test_wilson_agrees_with_scipy():
    for successes, n in ((0, 10), (2, 10), (3, 17), (10, 10), (50, 100)):
        expected = stats.binomtest(successes, n).proportion_ci(0.95, method="wilson")
        got = wilson(successes, n)
        assert (got.low, got.high) == (pytest.approx(expected.low, abs=1e-9), pytest.approx(expected.high, abs=1e-9))


def test_one_success_or_failure_has_the_end_of_a_poisson_count():
    """Brown, Cai and DasGupta (2001), section 4.1.1: chi-square(0.05; 2) / 2n."""
    low = stats.chi2.ppf(0.05, 2) / (2 * 40)
    expected = stats.binomtest(1, 40).proportion_ci(0.95, method="wilson")
    assert wilson(1, 40).low == pytest.approx(low) and low < expected.low
    assert wilson(1, 40).high == pytest.approx(expected.high)
    assert (wilson(39, 40).low, wilson(39, 40).high) == (pytest.approx(1 - expected.high), pytest.approx(1 - low))


def test_a_share_of_several_completions_has_an_effective_sample_size():
    hits = arrays([1, 1], [1, 1], [1, 1], [1, 0], [0, 0], [0, 0])
    # by hand: share 7/12; deviations of the sums 3 · 5/6, -1/6, 2 · -7/6; variance 6/5 · 29/6 / 144
    variance = 6 / 5 * (3 * (5 / 6) ** 2 + (1 / 6) ** 2 + 2 * (7 / 6) ** 2) / 12**2
    measured = 12 * variance / (7 / 12 * 5 / 12)
    assert 1 < measured < 2
    effect = (3 * measured + 2) / 4  # three examples have a miss; 2 if all completions of an example agreed
    same(share_interval(hits), wilson(7 / effect, 12 / effect))
    same(share_interval([1 - v for v in hits]), wilson(5 / effect, 12 / effect))


def test_a_share_stays_within_what_examples_and_completions_allow():
    assert share_interval(arrays([1, 1], [1, 1], [1, 1])) == wilson(3, 3)
    assert share_interval(arrays([1, 1], [0, 0], [1, 1], [0, 0])) == wilson(2, 4), "completions that agree count once"
    same(share_interval(arrays([1, 0, 0], [0, 1, 0])), wilson(2 / (5 / 3), 6 / (5 / 3)))  # (2 · 1 + 3) / 3
    assert share_interval(arrays([1, 0])) == wilson(0.5, 1)
    same(share_interval(arrays([1, 1, 1], [1], [], [1])), wilson(25 / 11, 25 / 11))  # 5² / (3² + 1 + 1): Kish


def test_the_interval_of_a_rare_share_holds_it_in_95_of_100_evaluations():
    """128 examples, 4 completions, 1 %: Student's t over examples held it in 88 %."""
    generator = np.random.default_rng(0)
    rates_DE = generator.beta(0.01 * 9, 0.99 * 9, size=(800, 128))  # correlation 0.1
    held = []
    for hits_E in generator.binomial(4, rates_DE):
        interval = clustered_share(hits_E.astype(np.float64), np.full(128, 4.0))
        held.append(interval.low <= 0.01 <= interval.high)
    assert 0.93 <= np.mean(held) <= 0.98


def test_a_reward_of_0_or_1_has_the_interval_of_a_share():
    rewards = arrays([1], [1], [1], [0], [1], [1])
    assert mean_interval(rewards).high > 1.0, "Student's t leaves the range"
    got = bounded_interval(rewards, 0.0, 1.0)
    assert got == wilson(5, 6)
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


@pytest.mark.parametrize(("n", "correct"), [(1, 0), (1, 1), (6, 0), (6, 2), (6, 5), (6, 6)])
def test_it_is_the_share_of_subsets_with_a_correct_completion(n: int, correct: int):
    hits = [True] * correct + [False] * (n - correct)
    for k in range(1, n + 1):
        subsets = list(combinations(hits, k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_examples_with_too_few_graded_completions_are_left_out_of_that_k():
    assert pass_at_ks([(4, 0), (1, 1), (0, 0)], 4) == {1: 0.5, 2: 0.0, 4: 0.0}
    assert pass_at_ks([(0, 0)], 2) == {}
