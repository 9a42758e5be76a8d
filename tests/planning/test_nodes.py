"""The seconds of a step on a cluster, against what can be said by hand."""

from __future__ import annotations

import pytest

from hone.planning.nodes import Parts, step_seconds

PARTS = Parts(sample=4.0, grade=1.0, train=3.0, weights=2.0)


def test_in_lock_step_the_parts_follow_each_other():
    assert step_seconds(PARTS, 0) == pytest.approx(10)


def test_a_version_behind_sampling_and_training_go_on_together():
    # Step N is sampled from version N - 1, so two steps are on their way: each takes 10 s, in 5 s one ends.
    assert step_seconds(PARTS, 1) == pytest.approx(5)


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [(Parts(9, 1, 2, 1), 10), (Parts(1, 0, 7, 1), 7), (Parts(1, 0, 2, 9), 9)],
    ids=["sampling", "training", "weights"],
)
def test_far_behind_the_slowest_part_sets_the_pace(parts, seconds):
    assert step_seconds(parts, 8) == pytest.approx(seconds)
