"""Before and after on the same examples: intervals with the coverage they claim, and differences that are there."""

from __future__ import annotations

import numpy as np
import pytest
from samples_made import LOST, RIGHT, WRONG, evaluation

from hone.evaluation.intervals import clustered_share, mean_interval, share_interval
from hone.extensions.viewer.card.measures import Evaluated, Level, changes, compare, mcnemar


@pytest.mark.parametrize(("right", "wrong"), [(0, 0), (1, 0), (5, 5), (30, 12), (12, 30), (246, 3), (1, 17)])
def test_mcnemar_is_the_exact_binomial_test(right: int, wrong: int) -> None:
    from scipy.stats import binomtest

    expected = binomtest(right, right + wrong).pvalue if right + wrong else 1.0
    assert mcnemar(right, wrong) == pytest.approx(expected, rel=1e-12)
    assert mcnemar(900, 0) == pytest.approx(2.0**-899, rel=1e-12)


def test_the_interval_of_a_difference_is_students_over_examples() -> None:
    """What makes an example hard is in both, and leaves the difference."""
    generator = np.random.default_rng(3)
    before = dict(enumerate(generator.random(200)))
    after = {i: value + 0.05 + generator.normal(0, 0.01) for i, value in before.items()}
    once = dict.fromkeys(after | {999: 1.0}, 1)
    change = changes({"reward": before}, {"reward": after | {999: 1.0}}, once, once)["reward"]
    assert change.sure and (change.examples, change.moved) == (200, 200)
    assert change.difference.mean == pytest.approx(0.05, abs=0.003)
    interval = mean_interval([np.array([after[i] - before[i]]) for i in before])
    assert interval and (change.difference.low, change.difference.high) == (interval.low, interval.high)
    assert set(changes({"reward": before, "none": {}}, {"reward": before, "none": {}}, once, once)) == {"reward"}


def test_a_share_has_the_interval_that_the_evaluation_gives_it() -> None:
    """Also where examples have several completions, of which some are right; pass@2 of four counts as two draws."""
    rows = evaluation([RIGHT, WRONG, WRONG, WRONG] * 3 + [WRONG] * 20, rollouts=4)
    found = compare(Evaluated(0, rows), Evaluated(4, rows))
    assert found is not None
    hits = [np.array([1.0, 0, 0, 0])] * 3 + [np.zeros(4)] * 5
    expected, pairs = share_interval(hits), clustered_share(np.array([1.0] * 3 + [0.0] * 5), np.full(8, 2.0))
    assert found.measures["correct"].after == Level(3 / 32, expected.low, expected.high)
    assert found.measures["pass@2"].after == Level(3 / 16, pairs.low, pairs.high)


def test_pass_at_k_of_examples() -> None:
    """Four completions of an example: one right of four is pass@1 1/4, pass@2 1/2, pass@4 1."""
    first, last = (
        Evaluated(step, evaluation([RIGHT] * right + [WRONG] * (4 - right), rollouts=4))
        for step, right in ((0, 1), (4, 2))
    )
    assert {name: round(values[0], 9) for name, values in first.measures.items()} == {
        "reward": 0.325, "correct": 0.25, "pass@2": 0.5, "pass@4": 1.0,
    }  # fmt: skip
    assert last.measures["pass@2"][0] == pytest.approx(5 / 6)


def test_other_examples_and_ungraded_ones_are_left_out_and_counted() -> None:
    before, after = evaluation([WRONG] * 3 + [RIGHT] * 2 + [LOST]), evaluation([RIGHT] * 4 + [WRONG] * 2)
    after[0]["example_id"] = "another"
    after[1] |= {"outcome": "grader_error", "reward": None}
    found = compare(Evaluated(0, before), Evaluated(4, after))
    assert found and (found.apart, found.right, found.wrong, found.measures["reward"].examples) == (2, 1, 1, 4)
    assert compare(Evaluated(0, before[:1]), Evaluated(4, after)) is None
