"""The split of a reward, with numbers worked out by hand; windows; verdicts."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest

from hone.environments import Rubric
from hone.extensions.reproduce.attribution import (
    POINT,
    MainPart,
    Split,
    Window,
    change_between,
    choose_ends,
    judge,
    parts_seen,
    window,
    windows,
)
from hone.types import Outcome, Score


def correctness(completion) -> float:
    return 0.0


def format(completion) -> float:
    return 0.0


TWO_PART = Rubric([format, correctness], [0.1, 0.9], correctness=correctness)
SPARSE = Rubric([correctness], [2.0])


def scored(rubric: Rubric, outcome: Outcome = Outcome.WRONG, **components: float) -> Score:
    reward = sum(rubric.weights[name] * value for name, value in components.items())
    return Score(math.nan if outcome.is_failure else reward, components, rubric.weights, outcome)


def test_a_format_point_goes_by_the_other_grader_if_it_has_one_and_stays_as_recorded_if_not() -> None:
    lost = scored(TWO_PART, Outcome.UNPARSABLE, format=0.0, correctness=0.0)
    paid = scored(TWO_PART, format=1.0, correctness=0.0)
    both = scored(TWO_PART, Outcome.CORRECT, format=1.0, correctness=1.0)
    right = scored(SPARSE, Outcome.CORRECT, correctness=1.0)
    two, sparse = MainPart.from_rubric(TWO_PART), MainPart.from_rubric(SPARSE)
    assert parts_seen(lost, both, two, two) == pytest.approx((0.9, 0.1))
    assert parts_seen(lost, right, two, sparse) == pytest.approx((0.9, 0.0)), "2.0 is the same full marks as 0.9"
    assert parts_seen(paid, right, two, sparse) == pytest.approx((0.9, 0.1))
    assert parts_seen(right, both, sparse, two) == pytest.approx((2.0, 0.0)), "the recorded grader had no format"


def points(step, recorded, main, extra=0.0, truncated=False, was_right=False, is_right=False, length=7) -> np.ndarray:
    found = np.empty(len(recorded), POINT)
    found["step"], found["recorded"], found["main"], found["extra"] = step, recorded, main, extra
    found["regraded"], found["truncated"], found["length"] = main, truncated, length
    found["was_right"], found["is_right"] = was_right, is_right
    return found


def test_the_split_by_hand() -> None:
    """Four completions, the third cut off: right for both; right, which the recorded grader lost; nothing; wrong.

    skill 1.8 / 3, truncation 1.8 / 4 - skill, format 0.3 / 4, parser (0 - 1.0) / 4; together 1.1 / 4.
    """
    recorded = np.array([1.0, 0.0, 0.0, 0.1])
    cut = [False, False, True, False]
    found = window(points(0, recorded, [0.9, 0.9, 0.0, 0.0], [0.1, 0.1, 0.0, 0.1], cut), 0, 0).split
    assert asdict(found) == pytest.approx({"skill": 0.6, "truncation": -0.15, "format": 0.075, "parser": -0.25})
    assert found.total == pytest.approx(recorded.mean())
    ones = np.ones(4)
    stopped = window(points(0, ones, ones / 2, 0.0, True), 0, 0).split
    assert stopped == Split(parser=0.5, skill=0.5, truncation=0.0, format=0.0), "none is complete"


def columns(recorded: list[float], main: list[float], size: int = 4, truncated: float = 0.0) -> np.ndarray:
    """`size` completions of each step; each is worth what the step's numbers say. `truncated`: share of each step."""
    steps = np.repeat(np.arange(len(recorded)), size)
    old, new = np.repeat(recorded, size), np.repeat(main, size)
    cut = np.tile(np.arange(size) < truncated * size, len(recorded))
    return points(steps, old, new, truncated=cut, was_right=old >= 1, is_right=new >= 1)


def test_what_one_grader_could_not_grade_is_in_no_mean() -> None:
    found = window(columns([1.0, math.nan, 0.0], [1.0, 1.0, math.nan]), 0, 2)
    assert found is not None and (found.count, found.graded, found.recorded, found.split.skill) == (12, 4, 1.0, 1.0)
    assert window(columns([1.0, math.nan], [1.0, 1.0]), 1, 1) is None


def verdict(before: tuple[float, float], after: tuple[float, float], cut: tuple[float, float] = (0, 0)):
    """(recorded, seen) reward of two windows of two steps each, and the share that was cut off."""
    made: list[Window] = []
    for (recorded, main), share in zip((before, after), cut, strict=True):
        one = window(columns([recorded] * 2, [main] * 2, truncated=share), 0, 1)
        assert one is not None
        made.append(one)
    return judge(*made)


def change(found) -> dict[str, float]:
    return asdict(change_between(found.before, found.after))


@pytest.mark.parametrize(
    ("before", "after", "cause", "words"),
    [
        ((0.9, 0.9), (0.2, 0.9), "parser", "Your parser lost it: the model did not get worse."),
        ((0.8, 0.8), (0.2, 0.95), "parser", "Your parser lost it: the model did not get worse."),
        ((0.9, 0.9), (0.1, 0.75), "parser", "Your parser lost most of it: the model got a little worse."),
        ((0.9, 0.5), (0.5, 0.5), "parser", "Before, the recorded grader paid for answers that the other grader"),
        ((0.4, 0.9), (0.1, 0.9), "parser", "If the other grader, more lenient from the start, is right"),
        ((0.9, 0.9), (0.2, 0.8), "parser", "by 0.70 from steps 0-1 to 0-1: parser -0.60, skill -0.10, truncation 0.00"),
        ((0.9, 0.9), (0.2, 0.2), "skill", "The model got worse: both graders say so."),
        ((0.7, 0.9), (0.2, 0.4), "skill", "The model got worse"),  # a stricter parser, as strict all along
        ((0.9, 0.9), (0.3, 0.6), "mixed", "Several things together: "),
        ((0.2, 0.2), (0.9, 0.9), "skill", "The model got better: both graders say so."),
        ((0.2, 0.2), (0.9, 0.2), "parser", "The recorded grader pays for answers that the other grader rejects"),
        ((0.1, 0.4), (0.4, 0.4), "parser", "Answers took a form that the recorded grader reads"),
        ((0.5, 0.5), (0.5, 0.5), "none", "did not change"),
        ((0.5, 0.5), (0.5, 0.9), "none", "Its parts moved in opposite directions."),
    ],
)
def test_verdicts(before, after, cause, words) -> None:
    found = verdict(before, after)
    assert found.cause == cause and words in found.sentence
    assert change_between(found.before, found.after).total == pytest.approx(after[0] - before[0])


def test_a_grader_that_makes_the_same_of_everything_tells_nothing() -> None:
    right, nothing = verdict((0.9, 1.0), (0.2, 1.0)), verdict((0.9, 0.0), (0.2, 0.0))
    assert (right.cause, nothing.cause) == ("undecided", "undecided")
    assert "calls everything right" in right.sentence and "pays for no completion" in nothing.sentence
    early = window(columns([0.5], [0.5]), 0, 0)
    assert early is not None and judge(right.before, right.after, [early]).cause == "parser"


def test_one_grader_does_not_tell_the_model_from_its_parser() -> None:
    before, after = verdict((0.9, 0.9), (0.2, 0.2)).before, verdict((0.9, 0.9), (0.2, 0.2)).after
    found = judge(before, after, same_grader=True)
    assert found.cause == "undecided" and "both graders" not in found.sentence


def test_where_the_limit_stops_all_what_it_cost_is_truncation() -> None:
    """No more than those were worth that it did not stop before."""
    lost = verdict((0.9, 0.9), (0.1, 0.1), cut=(0, 1))
    assert lost.cause == "truncation" and change(lost) == pytest.approx(
        {"skill": 0, "truncation": -0.8, "format": 0, "parser": 0}
    )
    worse = change(verdict((0.8, 0.8), (0.2, 0.2), cut=(0.75, 1)))
    assert (worse["truncation"], worse["skill"]) == pytest.approx((-0.2, -0.4))
    won = change(verdict((0.1, 0.1), (0.9, 0.9), cut=(1, 0.5)))
    assert (won["truncation"], won["skill"]) == pytest.approx((0.45, 0.35))
    assert verdict((0.9, 0.9), (0.1, 0.1), cut=(1, 1)).cause == "skill"


def test_a_run_that_does_not_change_is_seldom_said_to_fall() -> None:
    """The best of ten windows of noise stands out; a few steps may be alike by chance."""
    rng = np.random.default_rng(0)
    fell = 0
    for size in (20, 120):
        for _ in range(100):
            marks = (rng.random((size, 64)) < 0.5).astype(float).ravel()
            before, after = choose_ends(windows(points(np.repeat(np.arange(size), 64), marks, marks)))
            fell += judge(before, after).cause != "none"
    assert fell <= 20
