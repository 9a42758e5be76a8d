"""Intervals and tests of a run card, against scipy, closed forms and simulated coverage."""

from __future__ import annotations

import numpy as np
import pytest

from hone.evaluation.intervals import mean_interval, wilson
from hone.viewer.card.paired import Turned, bootstrap, changes, levels, mcnemar, odds_words, turned


@pytest.mark.parametrize(("right", "wrong"), [(0, 0), (1, 0), (5, 5), (30, 12), (12, 30), (246, 3), (1, 17)])
def test_mcnemar_is_the_exact_binomial_test(right: int, wrong: int) -> None:
    from scipy.stats import binomtest

    expected = binomtest(right, right + wrong).pvalue if right + wrong else 1.0
    assert mcnemar(right, wrong) == pytest.approx(expected, rel=1e-12)


def test_mcnemar_of_many_does_not_vanish() -> None:
    assert mcnemar(900, 0) == pytest.approx(2.0**-899, rel=1e-12)


@pytest.mark.parametrize("kind", ["turns", "skewed", "few"])
def test_the_interval_is_scipys_bca(kind: str) -> None:
    from scipy import stats

    generator = np.random.default_rng(7)
    values = {
        "turns": generator.choice([-1.0, 0.0, 1.0], p=[0.05, 0.6, 0.35], size=300),
        "skewed": generator.exponential(size=60) ** 2,
        "few": generator.normal(size=12),
    }[kind]
    (mine,) = bootstrap(values[:, None], generator)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=1).confidence_interval
    wide = theirs.high - theirs.low
    assert mine is not None
    assert mine.low == pytest.approx(theirs.low, abs=0.05 * wide)
    assert mine.high == pytest.approx(theirs.high, abs=0.05 * wide)


def test_for_many_examples_it_is_the_t_interval() -> None:
    values = np.random.default_rng(1).normal(0.3, 1.0, size=4000)
    (mine,) = bootstrap(values[:, None], np.random.default_rng(2))
    exact = mean_interval([np.array([value]) for value in values])
    assert mine is not None and exact is not None
    assert mine.low == pytest.approx(exact.low, abs=0.002) and mine.high == pytest.approx(exact.high, abs=0.002)


@pytest.mark.parametrize(("count", "least"), [(30, 0.90), (256, 0.925)])
def test_95_of_100_intervals_hold_the_truth(count: int, least: float) -> None:
    """Of 600 simulated evaluations before and after, correlated by how hard an example is; a column for each."""
    generator = np.random.default_rng(count)
    hard = generator.beta(1, 1, size=(count, 600))
    before = generator.random(hard.shape) < 0.5 * hard
    after = generator.random(hard.shape) < 0.5 * hard + 0.3
    found = bootstrap(after.astype(float) - before, generator)
    hits = [interval is not None and interval.low <= 0.3 <= interval.high for interval in found]
    assert least <= np.mean(hits) <= 0.975


def test_pairing_takes_out_what_makes_examples_hard() -> None:
    generator = np.random.default_rng(3)
    hard = generator.random(200)
    before = dict(enumerate(hard))
    after = {i: value + 0.05 + generator.normal(0, 0.01) for i, value in enumerate(hard)}
    change = changes({"reward": (before, after)}, seed=0)["reward"]
    assert change.sure and change.count == 200
    assert change.difference.mean == pytest.approx(0.05, abs=0.003)
    spread = change.difference.interval
    level = change.before.interval
    assert spread is not None and level is not None
    assert spread.high - spread.low < 0.1 * (level.high - level.low)


def test_only_examples_of_both_count_and_the_same_seed_gives_the_same() -> None:
    before, after = {0: 0.0, 1: 0.5, 2: 1.0, 9: 1.0}, {0: 1.0, 1: 0.5, 2: 1.0, 7: 0.0}
    once = changes({"reward": (before, after), "none": ({4: 1.0}, {5: 1.0})}, seed=1)
    assert once == changes({"reward": (before, after)}, seed=1) and set(once) == {"reward"}
    assert once["reward"].count == 3 and once["reward"].difference.mean == pytest.approx(1 / 3)
    more = {i: i % 7 / 7 for i in range(50)}
    first, other = (changes({"reward": (dict.fromkeys(more, 0.0), more)}, seed=seed) for seed in (1, 2))
    assert first != other


def test_measures_of_the_same_examples_are_resampled_together() -> None:
    """What skill and format gain adds up to what the strict score gained, in each resample."""
    generator = np.random.default_rng(5)
    strict = {i: float(generator.random() < 0.4) for i in range(100)}
    gap = {i: 0.25 * (1 - value) for i, value in strict.items()}
    zero = dict.fromkeys(strict, 0.0)
    found = changes({"strict": (zero, strict), "gap": (zero, gap)}, seed=0)
    one, other = found["strict"].difference.interval, found["gap"].difference.interval
    assert one is not None and other is not None  # gap = (1 - strict) / 4
    assert other.low == pytest.approx(0.25 * (1 - one.high), abs=0.004)
    assert other.high == pytest.approx(0.25 * (1 - one.low), abs=0.004)


def test_where_examples_agree_a_share_has_wilsons_interval_and_a_difference_none() -> None:
    right = dict.fromkeys(range(20), 1.0)
    change = changes({"exact": (right, right)}, seed=0, shares=("exact",))["exact"]
    assert change.after.interval == wilson(20, 20) and change.difference.interval is None and not change.sure
    (level,) = levels({"reward": {0: 0.3}}, seed=0).values()
    assert level.mean == 0.3 and level.interval is None


def test_what_became_of_the_examples() -> None:
    before = {0: True, 1: True, 2: False, 3: False, 4: False, 5: True}
    after = {0: True, 1: False, 2: True, 3: True, 4: False, 6: True}
    assert turned(before, after) == Turned(right=2, wrong=1, stayed_right=1, stayed_wrong=1)


@pytest.mark.parametrize(
    ("p", "words"),
    [(1.0, "p = 1.00"), (0.31, "p = 0.31"), (0.0312, "p = 0.031"), (1e-5, "p < 0.0001"), (3e-10, "p < 1e-9")],
)
def test_p_values_in_words(p: float, words: str) -> None:
    assert odds_words(p) == words


def test_where_all_examples_change_by_the_same_there_is_no_doubt() -> None:
    zeros, ones = dict.fromkeys(range(8), 0.0), dict.fromkeys(range(8), 1.0)
    found = changes({"up": (zeros, ones), "same": (ones, ones)}, 0)
    assert found["up"].difference.interval is None and found["up"].sure and found["up"].moved == 8
    assert not found["same"].sure and found["same"].moved == 0


def test_few_examples_that_change_show_nothing() -> None:
    """Of 256 examples five turned right: the bootstrap's interval leaves out 0, McNemar's test has p = 0.06."""
    before = dict.fromkeys(range(256), 0.0)
    for turned_right, sure in ((5, False), (6, True)):
        found = changes({"exact": (before, {e: float(e < turned_right) for e in before})}, 0)["exact"]
        assert found.difference.interval is not None and found.difference.interval.low > 0
        assert found.moved == turned_right and found.sure is sure is (mcnemar(turned_right, 0) < 0.05)


def test_a_difference_is_found_where_there_is_none_in_at_most_8_of_100_cases() -> None:
    """Of evaluations in which as many examples turn right as wrong by chance, from one of 256 on average to 26."""
    generator = np.random.default_rng(3)
    for rate in (0.004, 0.01, 0.02, 0.05):
        drawn = generator.random((400, 256))
        after = np.where(drawn < rate, 1.0, np.where(drawn < 2 * rate, -1.0, 0.0))
        before = dict.fromkeys(range(256), 0.0)
        runs = {str(i): (before, dict(enumerate(values.tolist()))) for i, values in enumerate(after)}
        assert np.mean([change.sure for change in changes(runs, 1).values()]) <= 0.08, rate
