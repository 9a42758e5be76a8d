from __future__ import annotations

import asyncio

import pytest

from hone.grading import GraderFailure, accepted_names, attempt, run_reward, together


def result(work):
    return together([work])[0]


OFFERED = ("completion", "answer", "parser")


def test_accepted_names_are_the_parameters_that_are_offered():
    assert accepted_names(lambda answer, completion: 0, OFFERED) == ("answer", "completion")
    assert accepted_names(lambda completion, strict=True: 0, OFFERED) == ("completion",)
    assert accepted_names(lambda **kwargs: 0, OFFERED) == OFFERED
    assert accepted_names(lambda answer, *rest: 0, OFFERED) == ("answer",)
    with pytest.raises(ValueError, match=r"^judge$"):
        accepted_names(lambda completion, judge: 0, OFFERED)


def test_attempt_awaits_whatever_is_awaitable_and_a_cancelled_task_is_a_failure():
    async def value():
        await asyncio.sleep(0)
        return 7

    async def cancelled():
        raise asyncio.CancelledError

    assert result(attempt(value)) == 7
    assert result(attempt(lambda: value())) == 7
    assert isinstance(result(attempt(cancelled)), GraderFailure)


def test_plain_functions_run_outside_an_event_loop_even_after_async_ones():
    async def one():
        return 1.0

    def plain():
        return asyncio.run(one())

    def both():
        first = yield from run_reward(one, {})
        second = yield from run_reward(plain, {})
        return first, second

    assert together([both(), both()]) == [(1.0, 1.0)] * 2


@pytest.mark.parametrize("beside_a_loop", [False, True])
def test_what_a_function_keeps_of_its_event_loop_is_of_use_the_next_time(beside_a_loop):
    """As the client of a judge does; beside a loop that runs, it is one other loop."""
    one_at_a_time = asyncio.Semaphore(1)  # keeps how many wait for it

    async def judged(n):
        async with one_at_a_time:
            await asyncio.sleep(0.001)
        return n

    def asked():
        return [together([run_reward(judged, {"n": n}) for n in range(3)]) for _ in range(3)]

    async def notebook():
        return asked()

    assert (asyncio.run(notebook()) if beside_a_loop else asked()) == [[0, 1, 2]] * 3


def test_what_a_function_leaves_running_is_cancelled():
    ended = []

    async def background():
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(True)

    async def leaves(tasks):
        tasks.append(asyncio.create_task(background()))
        await asyncio.sleep(0)
        return 1.0

    assert together([run_reward(leaves, {"tasks": []})]) == [1.0] and ended == [True]


def test_after_an_interruption_the_next_is_answered():
    async def interrupted():
        raise KeyboardInterrupt

    async def fine():
        await asyncio.sleep(0)
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        together([run_reward(fine, {}), run_reward(interrupted, {})])
    assert together([run_reward(fine, {})]) == [1.0]
