"""The driver of rollouts: when it samples, what it samples together, and how it ends."""

from __future__ import annotations

import _thread
import asyncio
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from processes import until

from hone.environments import driver as driving
from hone.environments.driver import Driver
from hone.errors import Halt, UserError


class Batches:
    """Answers with the item itself, and keeps what was asked for together."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.sampled: list[list[Any]] = []
        self.asked: list[list[Any]] = []
        self.seconds = seconds

    def sample(self, items: list[Any], give: Any) -> list[Any]:
        self.sampled.append(items)
        time.sleep(self.seconds)
        return items

    def respond(self, items: list[Any]) -> list[Any]:
        self.asked.append(items)
        return items


def run(
    batches: Batches, *jobs: Any, patience: float | None = None, concurrency: int | None = None, **more: Any
) -> list[Any]:
    """Run jobs, which get the driver and their own number."""
    env: Any = SimpleNamespace(respond_many=batches.respond, patience=patience, concurrency=concurrency)
    driver = Driver(env, batches.sample, concurrency=more.pop("most", None))
    return driver.run([partial(job, driver, i) for i, job in enumerate(jobs)], make=lambda job: job(), **more)


async def two_turns(driver: Driver, index: int) -> Any:
    first = await driver.ask_turn(index, f"{index}a")
    if index:
        await asyncio.sleep(0.05 * index)
        await driver.ask_answer(index, f"{index}?")
    return first + await driver.ask_turn(index, f"{index}b")


def test_all_that_have_begun_are_waited_for_and_answers_come_before_turns():
    threads, batches = _thread._count(), Batches()
    assert run(batches, *[two_turns] * 3) == ["0a0b", "1a1b", "2a2b"]
    assert batches.sampled == [["0a", "1a", "2a"], ["0b", "1b", "2b"]], "however long an answer takes"
    assert [one for batch in batches.asked for one in batch] == ["1?", "2?"]
    until(lambda: _thread._count() <= threads, "the thread of the rollouts has ended")


def test_turns_are_sampled_in_the_order_of_their_stops_rollouts_and_numbers():
    async def several(driver: Driver, index: int) -> None:
        order = (("z",), ("a",), ())[index % 3]
        await asyncio.gather(*(driver.ask_turn(index, (index, n), order) for n in range(2)))

    batches = Batches()
    run(batches, *[several] * 4)
    assert batches.sampled == [[(2, 0), (2, 1), (1, 0), (1, 1), (0, 0), (0, 1), (3, 0), (3, 1)]]


def test_rollouts_behind_the_limit_have_not_begun():
    for limits in ({"concurrency": 1}, {"most": 1}, {"concurrency": 64, "most": 1}, {"concurrency": 1, "most": 64}):
        batches = Batches()
        run(batches, *[two_turns] * 3, **limits)
        assert batches.sampled == [["0a"], ["0b"], ["1a"], ["1b"], ["2a"], ["2b"]]


def test_with_patience_others_are_waited_for_as_long_as_that():
    async def sleeps(driver: Driver, index: int) -> None:
        await asyncio.sleep(0 if index else 0.5)
        await driver.ask_turn(index, index)

    for patience, sampled in ((0.02, [[1, 2], [0]]), (None, [[0, 1, 2]])):
        batches = Batches()
        run(batches, *[sleeps] * 3, patience=patience)
        assert batches.sampled == sampled


def test_what_a_rollout_raises_is_raised_here_and_ends_all():
    threads, ended = _thread._count(), list[int]()

    async def waits(driver: Driver, index: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(index)

    async def fails(driver: Driver, index: int) -> None:
        raise UserError("the data is wrong")

    async def leaves(driver: Driver, index: int) -> None:
        raise asyncio.CancelledError

    with pytest.raises(UserError, match="the data is wrong"):
        run(Batches(), waits, fails)
    with pytest.raises(Halt, match="a rollout cancelled itself"):
        run(Batches(), waits, leaves)
    batches = Batches()
    batches.sample = lambda *_: (_ for _ in ()).throw(RuntimeError("the engine failed"))
    with pytest.raises(RuntimeError, match="the engine failed"):
        run(batches, two_turns, waits, patience=0.02)
    assert ended == [0, 0, 1]
    until(lambda: _thread._count() <= threads, "the thread of the rollouts has ended")


def test_a_rollout_that_keeps_the_loop_from_running_ends_the_batch(monkeypatch):
    monkeypatch.setattr(driving, "BLOCKED_AFTER_SECONDS", 0.5)

    async def blocks(driver: Driver, index: int) -> None:
        time.sleep(3.0)

    with pytest.raises(Halt, match="blocks the event loop"):
        run(Batches(), blocks)
