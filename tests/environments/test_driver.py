"""The driver of rollouts: when it samples, what it samples together, and how it ends."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import signal
import threading
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


def test_a_turn_that_its_rollout_has_left_is_not_sampled():
    async def leaves(driver: Driver, index: int) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(driver.ask_turn(index, "left"), 0.05)
        await asyncio.sleep(0.5)

    async def waits(driver: Driver, index: int) -> None:
        await asyncio.sleep(1.0)

    batches = Batches()
    run(batches, leaves, waits, patience=0.2)
    assert batches.sampled == []


def test_a_timeout_of_a_rollout_passes_while_its_turn_is_sampled():
    left: list[float] = []

    async def impatient(driver: Driver, index: int) -> str:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await driver.ask_turn(index, "a")
        left.append(time.monotonic() - began)
        return await driver.ask_turn(index, "b")

    batches = Batches(seconds=1.0)
    assert run(batches, impatient) == ["b"] and batches.sampled == [["a"], ["b"]]
    assert left[0] < 1.0


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


def test_a_cell_of_a_notebook_may_drive_rollouts():
    """Its thread runs an event loop already."""
    batches = Batches()

    async def cell() -> list[Any]:
        return run(batches, two_turns, two_turns)

    assert asyncio.run(cell()) == ["0a0b", "1a1b"]


def test_ctrl_c_hands_over_what_has_ended_and_begins_nothing():
    handed: list[tuple[int, Any]] = []
    drivers: list[Driver] = []

    async def asks(driver: Driver, index: int) -> Any:
        drivers.append(driver)
        await driver.ask_answer(index, "?")

    async def ends(driver: Driver, index: int) -> str:
        await asyncio.sleep(0.1)
        return "done"

    async def stays(driver: Driver, index: int) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    def respond(items: list[Any]) -> list[Any]:
        until = time.monotonic() + 60
        while not drivers[0]._results and time.monotonic() < until:
            time.sleep(0.01)
        raise KeyboardInterrupt

    batches = Batches()
    batches.respond = respond
    with pytest.raises(KeyboardInterrupt):
        jobs = [asks, ends, stays, two_turns]
        run(batches, *jobs, patience=0.02, concurrency=2, finished=lambda *one: handed.append(one))
    assert handed == [(1, "done"), (2, None)] and batches.sampled == []


def test_ctrl_c_ends_all_rollouts():
    threads, ended = _thread._count(), list[int]()

    async def waits(driver: Driver, index: int) -> None:
        threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(index)

    main = threading.main_thread().ident
    with pytest.raises(KeyboardInterrupt):
        run(Batches(), waits)
    assert ended == [0]
    until(lambda: _thread._count() <= threads, "the thread of the rollouts has ended")


def test_a_thread_that_can_not_start_is_a_lack_of_memory(monkeypatch) -> None:
    monkeypatch.setattr(driving, "_thread", SimpleNamespace(start_new_thread=lambda *_: None))
    monkeypatch.setattr(driving, "START_SECONDS", 0.01)
    with pytest.raises(MemoryError, match="the thread that runs the rollouts did not start"):
        run(Batches(), two_turns)
