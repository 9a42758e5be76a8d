"""Drives rollouts: they run on an event loop in a separate thread, while the caller's thread samples.

    rollouts = Driver(env, sample).run(models)

A rollout waits for a turn of the model or for an answer of the environment. Once every active rollout waits, the
caller's thread answers all requests to the environment or, if there are none, samples all turns, by rollout number. So
which turns are sampled together doesn't depend on how long answers take.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hone.errors import Halt, UserError
from hone.grading import last_line
from hone.redaction import redact
from hone.types import Example, Message, Outcome, Rollout

if TYPE_CHECKING:
    from hone.environments.environment import Environment
    from hone.environments.multi_turn import Answer

START_SECONDS = 30.0
CLEANUP_SECONDS = 5.0
"""Seconds to wait until cancelled rollouts have ended."""
TAIL = 4096
"""Characters of a failure's text to store: its end."""
BLOCKED_AFTER_SECONDS = 600.0
"""An event loop that doesn't run for this time counts as blocked."""
Tools = list[dict[str, Any]] | None


class NoRoom(UserError):
    """The messages leave no room for another turn of the model."""


@dataclass(frozen=True)
class Turn:
    """A message of the model and the reason for its end, "stop" or "length"."""

    message: Message
    stop_reason: str


class Model:
    """The model as one rollout sees it. It records the conversation."""

    def __init__(self, driver: Driver, index: int, example: Example, sample_id: str) -> None:
        self.driver, self.index, self.example, self.sample_id = driver, index, example, sample_id
        self.asked = 0
        """Number of calls of the model, finished or not."""

    def key(self, *purpose: str | int) -> int:
        """Return the 64-bit key of a random choice in this rollout."""
        raise NotImplementedError

    async def sample(self, messages: list[Message], tools: Tools = None) -> Turn:
        """Return the model's next message. Raises NoRoom.

        If `messages` begin with the messages and reply of an earlier call, sampling continues from that call's tokens.
        If `tools` is a list, even an empty one, tool calls in the reply are parsed. If None, the reply is text.
        """
        raise NotImplementedError

    async def respond(self, messages: list[Message], state: dict[str, Any]) -> Answer:
        """Return the environment's answer to a conversation. Conversations of a batch are answered together."""
        return await self.driver.ask_answer(self.index, (messages, state))

    def rollout(self, turn_rewards: Sequence[float] | None = None) -> Rollout:
        """Return the rollout so far; `turn_rewards` are the rewards of its model calls, in order."""
        raise NotImplementedError


def failed(words: str, outcome: Outcome = Outcome.GRADER_ERROR) -> tuple[Outcome, str]:
    """Return `outcome` and the end of a failure's text, without API keys and half surrogate pairs."""
    return outcome, redact(words)[-TAIL:].encode("utf-8", "replace").decode()


async def rolled_out(env: Environment, model: Model, passed: type[Exception] = UserError) -> Rollout:
    """Make a rollout. NoRoom ends it. Another exception is its failure; UserError, Halt and `passed` are raised."""
    try:
        return await env.rollout(model, model.example)
    except NoRoom as full:
        failure = None if model.asked else (Outcome.GRADER_ERROR, str(full))
    except (UserError, Halt, passed):
        raise
    except Exception as error:
        failure = failed("".join(traceback.format_exception(error)))
    return replace(model.rollout(), failure=failure)


class Waiting(NamedTuple):
    """A rollout's request. Requests are sorted by `order`, then by the rollout's number."""

    rollout: int
    item: Any
    future: asyncio.Future[Any]
    order: Sequence[str]


class Driver:
    """Runs a batch of rollouts of `env`, at most min(`concurrency`, `env.concurrency`) at a time.

    `sample(calls, give)` samples the turns of `ask_turn`, and may return a turn early by `give(index, turn)`. Waiting
    rollouts are answered once all wait, after `env.patience` seconds without a change, or at once if `alone` is true.
    """

    def __init__(
        self,
        env: Environment,
        sample: Callable[[list[Any], Callable[[int, Any], None]], Sequence[Any]] | None = None,
        alone: bool = False,
        concurrency: int | None = None,
    ) -> None:
        self.env, self._sample = env, sample
        self._patience = 0.0 if alone else env.patience
        self._concurrency = min(filter(None, (env.concurrency, concurrency)), default=None)
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._asked: list[Waiting] = []
        self._called: list[Waiting] = []
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._results: dict[int, Any] = {}
        self._told: set[int] = set()
        """Rollouts passed to `finished`."""
        self._busy = self._checking = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.new_event_loop()
        self._started, self._closed = threading.Event(), threading.Event()
        self.stack = contextlib.AsyncExitStack()
        """Resources that are closed on the loop, once all rollouts have ended."""
        self.endpoint: Any = None

    # On the caller's thread.

    def run(
        self,
        models: Sequence[Any],
        finished: Callable[[int, Any], None] | None = None,
        make: Callable[[Any], Coroutine[Any, Any, Any]] | None = None,
    ) -> list[Any]:
        """Return one rollout for each model, in order, made by `make` or `env.rollout`.

        Calls `finished` on this thread for each rollout that has ended, also after Ctrl-C. Raises a rollout's error, or
        Halt if a rollout blocks the event loop.
        """
        self._make = make or (lambda model: rolled_out(self.env, model))
        self._left, self._finished = deque(enumerate(models)), finished
        # Not by a Thread: its start waits forever if the new thread has no memory left to say that it runs.
        _thread.start_new_thread(self._run_loop, ())
        if not self._started.wait(START_SECONDS):
            raise MemoryError("the thread that runs the rollouts did not start")
        try:
            while len(self._told) < len(models):
                self._next()()
        except KeyboardInterrupt:
            self._close()
            for index in sorted(self._results.keys() - self._told):
                self._tell(index)
            raise
        finally:
            self._close()
        return [self._results[index] for index in range(len(models))]

    def _close(self) -> None:
        """End the event loop. If a rollout blocks the loop, it ends with the process."""
        self._soon(lambda: self._main.cancel())
        self._closed.wait(3 * CLEANUP_SECONDS)

    def _next(self) -> Callable[[], None]:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._work.get(timeout=1.0)
            runs = threading.Event()
            self._soon(runs.set)
            until = time.monotonic() + BLOCKED_AFTER_SECONDS
            while self._work.empty() and not runs.wait(1.0):
                if time.monotonic() > until:
                    raise Halt("a rollout blocks the event loop: await what takes long, or use an agent command")

    def _answer(self, waiting: list[Waiting], samples: bool) -> None:
        items = [one.item for one in waiting]
        if samples:
            assert self._sample is not None
            results = self._sample(items, lambda index, turn: self._give_early(waiting[index], turn))
        else:
            results = self.respond(items)
        self._soon(lambda: self._give(zip(waiting, results, strict=True)))

    def respond(self, conversations: list[Any]) -> Sequence[Any]:
        return self.env.respond_many(conversations)

    def _give_early(self, one: Waiting, turn: Any) -> None:
        self._soon(lambda: _settle(one, turn))
        with contextlib.suppress(queue.Empty):
            while True:
                self._work.get_nowait()()

    def _tell(self, index: int) -> None:
        self._told.add(index)
        if self._finished is not None:
            self._finished(index, self._results[index])

    def _soon(self, call: Callable[[], Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(call)

    # On the loop.

    def ask_turn(self, rollout: int, call: Any, order: Sequence[str] = ()) -> asyncio.Future[Any]:
        """Request a turn. Turns are sorted by `order`, then by rollout."""
        return self._wait(self._called, rollout, call, order)

    def ask_answer(self, rollout: int, conversation: Any) -> asyncio.Future[Any]:
        return self._wait(self._asked, rollout, conversation)

    def fail(self, error: BaseException) -> None:
        self._work.put(lambda: _raise(error))

    def _wait(self, waiting: list[Waiting], rollout: int, item: Any, order: Sequence[str] = ()) -> asyncio.Future[Any]:
        waiting.append(Waiting(rollout, item, self._loop.create_future(), order))
        self._news()
        return waiting[-1].future

    def _run_loop(self) -> None:
        words = "the thread that runs the rollouts has ended"
        self._started.set()
        try:
            asyncio.set_event_loop(self._loop)
            self._main = self._loop.create_task(self._all())
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._main)
        except BaseException as error:
            words += f" ({last_line(str(error))})"
        finally:
            self.fail(Halt(words))
            with contextlib.suppress(Exception):  # what rollouts began and forgot
                self._loop.run_until_complete(end_tasks(asyncio.all_tasks(self._loop)))
            try:
                self._loop.close()
            finally:
                self._closed.set()

    async def _all(self) -> None:
        async with self.stack:
            try:
                for _ in range(min(len(self._left), self._concurrency or len(self._left))):
                    self._begin()
                await asyncio.Event().wait()  # until it is cancelled
            finally:
                self._left.clear()
                await end_tasks(self._tasks.values())

    def _begin(self) -> None:
        index, model = self._left.popleft()
        task = self._tasks[index] = self._loop.create_task(self._make(model))
        task.add_done_callback(lambda task: self._ended(index, task))

    def _ended(self, index: int, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(index)
        if task.cancelled():
            self.fail(Halt("a rollout cancelled itself"))
        elif (error := task.exception()) is not None:
            self.fail(error)
        else:
            self._results[index] = task.result()
            self._work.put(lambda: self._tell(index))
            if self._left:
                self._begin()
            self._news()

    def _news(self) -> None:
        """Schedule `_check`, to run after all rollouts that can run now."""
        if not self._checking:
            self._checking = True
            self._loop.call_soon(self._check)

    def _check(self) -> None:
        self._checking = False
        if self._timer is not None:
            self._timer.cancel()
        self._drop_left()
        waiting = {one.rollout for one in (*self._asked, *self._called)}
        if not self._busy and waiting:
            if waiting >= self._tasks.keys() or self._patience == 0:
                self._hand_over()
            elif self._patience is not None:
                self._timer = self._loop.call_later(self._patience, self._hand_over)

    def _drop_left(self) -> None:
        for waiting in (self._asked, self._called):
            waiting[:] = [one for one in waiting if not one.future.done()]

    def _hand_over(self) -> None:
        self._drop_left()
        waiting, samples = (self._called, True) if not self._asked else (self._asked, False)
        if not waiting:
            return
        handed = sorted(waiting, key=lambda one: (one.order, one.rollout))
        waiting.clear()
        self._busy = True
        self._work.put(lambda: self._answer(handed, samples))

    def _give(self, given: Iterable[tuple[Waiting, Any]]) -> None:
        for one, result in given:
            _settle(one, result)
        self._busy = False
        self._news()


def _settle(one: Waiting, result: Any) -> None:
    if not one.future.done():
        one.future.set_result(result)


def _raise(error: BaseException) -> None:
    raise error


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks. Wait for a limited time only, because a task may ignore the cancellation."""
    left = list(tasks)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=CLEANUP_SECONDS)
