from __future__ import annotations

import asyncio

import pytest

from hone.grading import GraderFailure, accepted_names, attempt, decide_outcome, run_reward
from hone.types import Outcome

OFFERED = ("completion", "answer", "parser")


def test_accepted_names_are_the_parameters_that_are_offered():
    assert accepted_names(lambda answer, completion: 0, OFFERED) == ("answer", "completion")
    assert accepted_names(lambda completion, strict=True: 0, OFFERED) == ("completion",)
    assert accepted_names(lambda **kwargs: 0, OFFERED) == OFFERED
    assert accepted_names(lambda answer, *rest: 0, OFFERED) == ("answer",)
    with pytest.raises(ValueError, match=r"^judge$"):
        accepted_names(lambda completion, judge: 0, OFFERED)


def test_run_reward_gives_a_float_none_or_a_failure():
    assert run_reward(lambda answer: int(answer) == 4, {"answer": "4"}) == 1.0
    assert type(run_reward(lambda: True, {})) is float
    assert run_reward(lambda: None, {}) is None
    failure = run_reward(lambda: 1 / 0, {})
    assert isinstance(failure, GraderFailure)
    assert failure.outcome is Outcome.GRADER_ERROR and "ZeroDivisionError" in failure.detail


def test_attempt_awaits_whatever_is_awaitable_and_a_cancelled_task_is_a_failure():
    async def value():
        await asyncio.sleep(0)
        return 7

    async def cancelled():
        raise asyncio.CancelledError

    assert attempt(value) == 7
    assert attempt(lambda: value()) == 7
    assert isinstance(attempt(cancelled), GraderFailure)


def test_long_tracebacks_are_cut_in_the_middle():
    def chatty():
        raise ValueError("x" * 10_000 + " the end")

    failure = attempt(chatty)
    assert len(failure.detail) < 4100
    assert failure.detail.startswith("Traceback") and failure.detail.endswith("the end")


@pytest.mark.parametrize(
    ("correctness", "well_formed", "truncated", "outcome"),
    [
        (1.0, True, False, Outcome.CORRECT),
        (1.5, False, True, Outcome.CORRECT),
        (0.99, True, True, Outcome.WRONG),
        (None, True, False, Outcome.WRONG),
        (0.0, False, True, Outcome.TRUNCATED),
        (None, False, True, Outcome.TRUNCATED),
        (0.0, False, False, Outcome.UNPARSABLE),
    ],
)
def test_decide_outcome(correctness, well_formed, truncated, outcome):
    assert decide_outcome(correctness, well_formed, truncated) is outcome
