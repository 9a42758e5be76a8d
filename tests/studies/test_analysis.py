"""The statistics of a study, against scipy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hone.errors import UserError
from hone.studies.analysis import at_equal_cost, bootstrap, effects, fit_curve, holm, paired_test

SEEDS = np.array([0.03, 0.05, 0.01, 0.06])


def test_p_is_that_of_students_paired_test():
    p, visible = paired_test(SEEDS)
    assert p == pytest.approx(stats.ttest_rel(SEEDS, np.zeros(4))[1])
    error = SEEDS.std(ddof=1) / 2
    assert visible == pytest.approx((stats.t.ppf(0.975, 3) + stats.t.ppf(0.8, 3)) * error)
    assert paired_test(SEEDS[:1]) == (None, None)
    assert paired_test(np.zeros(3)) == (1.0, 0.0) and paired_test(np.full(3, 0.1)) == (0.0, 0.0)


def test_an_effect_of_the_visible_size_is_seen_in_four_of_five_studies():
    noise = np.random.default_rng(0).normal(0, 0.02, (4000, 5))
    error = 0.02 / 5**0.5
    size = float((stats.t.ppf(0.975, 4) + stats.t.ppf(0.8, 4)) * error)
    seen = np.mean([(paired_test(row + size)[0] or 0.0) < 0.05 for row in noise])
    assert 0.75 < seen < 0.9


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
    assert alone.verdict == "one seed: no verdict" and alone.p is alone.holm is alone.visible is None


def test_the_bootstrap_draws_seeds_and_examples():
    of_examples = np.tile(np.linspace(-1, 1, 50), (4, 1))  # seeds agree: the interval is that of the examples
    interval = bootstrap(of_examples)
    assert interval is not None
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * of_examples[0].std() / 50**0.5, rel=0.1)
    of_seeds = np.tile(np.linspace(-1, 1, 4)[:, None], (1, 50))
    interval = bootstrap(of_seeds)
    assert interval is not None and interval.high > 0.6 and interval == bootstrap(of_seeds)
    assert bootstrap(of_seeds[:, :1]) is None


def test_a_curve_is_found_again_and_not_read_too_far():
    x = np.array([50, 100, 200, 400, 800, 1600])
    y = 0.9 - 3.0 * x**-0.5
    curve = fit_curve(x, y)
    assert curve is not None
    assert (curve.limit, curve.drop, curve.rate) == pytest.approx((0.9, 3.0, 0.5), rel=1e-4)
    assert curve.error < 1e-6 and curve.unseen < 1e-4
    assert curve.at(3200) == pytest.approx(0.9 - 3.0 * 3200**-0.5, abs=1e-5)
    for beyond in (49, 3201):
        with pytest.raises(UserError, match=r"is beyond what was measured \(50 to 1600\)"):
            curve.at(beyond)
    assert fit_curve(x[:3], y[:3]) is None and fit_curve([0, *x[:3]], [0, *y[:3]]) is None


def test_equal_cost_is_read_between_points_only():
    assert at_equal_cost([100, 10000], [0.2, 0.6], 1000) == pytest.approx(0.4)
    assert at_equal_cost([100, 100, 1000], [0.1, 0.3, 0.5], 100) == pytest.approx(0.2)
    assert at_equal_cost([100, 1000], [0.2, 0.6], 99) is None and at_equal_cost([], [], 1) is None
