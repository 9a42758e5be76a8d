"""The statistics of a study, against scipy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hone.errors import UserError
from hone.studies.analysis import at_equal_cost, bootstrap, detectable, effects, fit_curve, holm, paired_test

SEEDS = np.array([0.03, 0.05, 0.01, 0.06])


def test_p_is_that_of_students_paired_test():
    assert paired_test(SEEDS[:, None]) == pytest.approx(stats.ttest_rel(SEEDS, np.zeros(4))[1])
    assert paired_test(SEEDS[:1, None]) is None and detectable(SEEDS[:1, None]) is None
    assert paired_test(np.zeros((3, 5))) == 1.0 and paired_test(np.full((3, 5), 0.1)) == 0.0


def test_seeds_that_agree_by_chance_are_no_surer_than_their_examples():
    d_SE = np.array([[0.0, 0.0, 1.0, 1.0], [1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
    assert d_SE.mean(axis=1).tolist() == [0.5, 0.5, 0.5]
    error = np.sqrt(d_SE[0].var(ddof=1) / 12)
    assert paired_test(d_SE) == pytest.approx(2 * stats.t.sf(0.5 / error, 2))


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_a_detectable_effect_is_found_in_four_of_five_studies(seeds: int):
    noise_RS = np.random.default_rng(0).normal(0, 0.02, (3000, seeds))
    unit = detectable(np.array([[-1.0], [1.0], *[[0.0]] * (seeds - 2)]))
    assert unit is not None
    scale = np.array([-1.0, 1.0, *[0.0] * (seeds - 2)]).std(ddof=1)
    effect = 0.02 * unit / scale
    found = np.mean([(paired_test(row[:, None] + effect) or 0.0) < 0.05 for row in noise_RS])
    assert found == pytest.approx(0.8, abs=0.03)
    assert (detectable(np.eye(seeds)[:, :1], comparisons=5) or 0) > 1.3 * (detectable(np.eye(seeds)[:, :1]) or 0)


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
    assert alone.verdict == "one seed: no test" and alone.seeds == 1
    assert alone.p is alone.p_corrected is alone.detectable is alone.interval is None


def test_the_bootstrap_draws_seeds_and_examples():
    of_examples = np.tile(np.linspace(-1, 1, 50), (4, 1))  # seeds agree: the interval is that of the examples
    interval = bootstrap(of_examples)
    assert interval is not None
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * of_examples[0].std() / 50**0.5, rel=0.1)
    assert interval == bootstrap(of_examples) and bootstrap(of_examples[:, :1]) is None


def test_of_three_seeds_the_interval_holds_the_truth_about_as_often_as_it_says():
    stream = np.random.default_rng(0)
    held = []
    for _ in range(300):
        interval = bootstrap(stream.normal(0, 1, (3, 1)) + stream.normal(0, 0.1, (3, 30)), draws=300)
        assert interval is not None
        held.append(interval.low <= 0 <= interval.high)
    assert 0.88 <= np.mean(held) <= 0.99


def test_a_curve_is_found_again_and_not_read_too_far():
    x = np.array([50, 100, 200, 400, 800, 1600])
    y = 0.9 - 3.0 * x**-0.5
    curve = fit_curve(x, y)
    assert curve is not None
    assert (curve.limit, curve.drop, curve.rate) == pytest.approx((0.9, 3.0, 0.5), rel=1e-4)
    assert curve.error < 1e-6 and curve.unseen < 1e-4
    assert curve.at(3200) == pytest.approx(0.9 - 3.0 * 3200**-0.5, abs=1e-5)
    for beyond in (49, 3201):
        with pytest.raises(UserError, match="is too far from what was measured, 50 to 1600"):
            curve.at(beyond)
    assert fit_curve(x[:3], y[:3]) is None and fit_curve([0, *x[:3]], [0, *y[:3]]) is None
    assert fit_curve(x, np.log(x)) is None, "it does not level off"


def test_equal_cost_is_read_between_points_only():
    assert at_equal_cost([100, 10000], [0.2, 0.6], 1000) == pytest.approx(0.4)
    assert at_equal_cost([100, 100, 1000], [0.1, 0.3, 0.5], 100) == pytest.approx(0.2)
    assert at_equal_cost([100, 1000], [0.2, 0.6], 99) is None and at_equal_cost([], [], 1) is None
