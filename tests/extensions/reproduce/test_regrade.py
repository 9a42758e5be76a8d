"""Pieces of regrading: what counts as the same grade, and which completions are shown."""

from __future__ import annotations

from dataclasses import replace

from hone.extensions.reproduce.regrade import Pair, Recorded, sort_by_typical_length
from hone.types import Example, Outcome, Rollout, Score


def recorded(outcome: Outcome = Outcome.CORRECT, reward: float = 1.0) -> Recorded:
    score = Score(reward, {"right": float(outcome is Outcome.CORRECT)}, {"right": 1.0}, outcome)
    return Recorded(0, Example([{"role": "user", "content": "?"}]), Rollout("0-0-0", [], "stop"), "", 1, score)


def test_typical_are_those_of_usual_length() -> None:
    pairs = [Pair(replace(recorded(), text="a" * length), recorded().score) for length in (1, 9, 4, 90, 5)]
    assert [len(pair.recorded.text) for pair in sort_by_typical_length(pairs)] == [5, 4, 1, 9, 90]


def test_what_came_out_the_same() -> None:
    def pair(old: Recorded, new: Recorded) -> Pair:
        return Pair(old, new.score)

    right, wrong, failed = recorded(), recorded(Outcome.WRONG, 0.1), recorded(Outcome.GRADER_ERROR, float("nan"))
    assert pair(right, right).same and pair(failed, recorded(Outcome.GRADER_TIMEOUT, float("nan"))).same
    assert not pair(right, recorded(reward=1.0 + 2**-52)).same and not pair(right, failed).same
    assert pair(right, wrong).disagree and not pair(right, failed).disagree and not pair(right, right).disagree
