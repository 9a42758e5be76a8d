"""Pieces of regrading: which completions are checked, the main part of a task that has changed."""

from __future__ import annotations

from dataclasses import replace

from hone.environments import Rubric, SingleTurnEnv
from hone.reproduce.attribution import MainPart
from hone.reproduce.regrade import Grader, Pair, Recorded, recorded_main_part, sort_by_typical_length, spread
from hone.types import Example, Outcome, Reply, Score


def recorded(outcome: Outcome = Outcome.CORRECT, reward: float = 1.0) -> Recorded:
    weights = {"format": 0.1, "right": 0.9}
    score = Score(reward, {"format": 1.0, "right": float(outcome is Outcome.CORRECT)}, weights, outcome)
    return Recorded(0, Example([{"role": "user", "content": "?"}]), Reply([], "stop", "0-0-0"), "", 1, score)


def test_a_sample_is_spread_evenly() -> None:
    assert spread(range(10), 3) == [0, 3, 6] and spread(range(4), 9) == [0, 1, 2, 3] and spread([], 2) == []


def test_the_own_task_says_what_decides_unless_its_weights_have_changed() -> None:
    def right(completion) -> float:
        return 0.0

    def format(completion) -> float:
        return 0.0

    same = Grader(SingleTurnEnv(rubric=Rubric([format, right], [0.1, 0.9], correctness=format)))
    other = Grader(SingleTurnEnv(rubric=Rubric([right])))
    graded = [recorded(), recorded(Outcome.WRONG, 0.1)]
    assert recorded_main_part(graded, same) == MainPart(("format",), 0.1)
    assert recorded_main_part(graded, other) == recorded_main_part(graded, None) == MainPart(("right",), 0.9)
    assert recorded_main_part([recorded(Outcome.GRADER_ERROR, float("nan"))], same) is None


def test_typical_are_those_of_usual_length() -> None:
    pairs = [Pair(replace(recorded(), text="a" * length), recorded().score) for length in (1, 9, 4, 90, 5)]
    assert [len(pair.recorded.text) for pair in sort_by_typical_length(pairs)] == [
        5,
        4,
        1,
        9,
        90,
    ]
    assert sort_by_typical_length([]) == []


def test_what_came_out_the_same() -> None:
    def pair(old: Recorded, new: Recorded) -> Pair:
        return Pair(old, new.score)

    right, wrong, failed = recorded(), recorded(Outcome.WRONG, 0.1), recorded(Outcome.GRADER_ERROR, float("nan"))
    late = recorded(Outcome.GRADER_TIMEOUT, float("nan"))
    assert pair(right, right).same and pair(failed, late).same
    assert not pair(right, recorded(reward=1.0 + 2**-52)).same and not pair(right, failed).same
    assert pair(right, wrong).disagree and not pair(right, failed).disagree and not pair(right, right).disagree
