"""Runs reward functions in this process. A failure is a value, never an exception or a reward of 0.

Code that may wait for an async function is a generator (`Work`), which yields each awaitable and receives its result.
`together` runs many generators. Plain functions need no event loop, and all async functions wait at the same time.

    [right, wrong] = together([run_reward(func, {"answer": "4"}), run_reward(func, {"answer": "5"})])
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import os
import re
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from hone.redaction import redact
from hone.terminal import printable
from hone.types import Outcome

T = TypeVar("T")
Work = Generator[Awaitable[Any], Any, T]
"""A generator that yields awaitables and receives their results. `together` runs it."""

_NUMBERS = {bool, int, float}
_NUMBERS |= {np.dtype(code).type for code in ("?", *np.typecodes["AllInteger"], *np.typecodes["Float"])}
"""Exact types that a reward may have: float() of another class may return anything."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
MAX_DETAIL = 4000
_LATE_SECONDS = 0.1
_of_thread = threading.local()


@dataclass(frozen=True)
class GraderFailure:
    """The failure of a reward function that gave no usable value. `detail` has the traceback or the returned value.

    `lost`: the grading process gave no answer, because it ended, was killed, or wrote something else. `killed`: signals
    from outside ended the process and its replacement, so another try may succeed.
    """

    outcome: Outcome
    detail: str
    lost: bool = False
    killed: bool = False

    def __post_init__(self) -> None:
        assert self.outcome.is_failure
        # Text of a reward function may hold half a surrogate pair, which no file takes, and the key to a service.
        object.__setattr__(self, "detail", redact(self.detail).encode("utf-8", "replace").decode())


def inside() -> bool:
    """Return True in a process of `hone.grading.pool`, where limits already apply to the code."""
    return getattr(sys.modules.get("__main__"), "IS_HONE_WORKER", False)


def accepted_names(func: Callable[..., Any], offered: tuple[str, ...]) -> tuple[str, ...]:
    """Return the `offered` arguments that `func` takes. Raises ValueError(name) if `func` requires another argument."""
    names: list[str] = []
    for parameter in inspect.signature(func).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return offered
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise ValueError(parameter.name)
    return tuple(names)


def attempt(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Work[Any | GraderFailure]:
    """Return the function's result, awaited if async. An exception, even `sys.exit`, is a failure; Ctrl-C is raised."""
    try:
        value = func(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return GraderFailure(Outcome.GRADER_ERROR, describe_exception(error))
    return (yield value) if inspect.isawaitable(value) else value


def run_reward(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> Work[float | GraderFailure | None]:
    """Return a reward function's number, None if the function abstains, or a failure."""
    value = yield from attempt(func, **kwargs)
    if value is None or isinstance(value, GraderFailure):
        return value
    return as_reward(func, value)


def together(
    works: Sequence[Work[T]], timeout: float | None = None, held_up: Callable[[], None] = lambda: None
) -> list[T]:
    """Run all `works` and return their results in order. The works' awaitables are awaited at the same time.

    An awaitable that takes more than `timeout` seconds becomes a failure. `held_up` is called if a timeout is noticed
    late: something blocked the event loop, so that other works may time out. Between waits, the works run in order, so
    no result depends on which awaitable ends first.
    """
    results: dict[int, T] = {}
    sent: dict[int, Any] = dict.fromkeys(range(len(works)))
    while sent:
        waiting: dict[int, Awaitable[Any]] = {}
        for index, value in sent.items():
            try:
                waiting[index] = works[index].send(value)
            except StopIteration as stop:
                results[index] = stop.value
        sent = dict(zip(waiting, _wait(list(waiting.values()), timeout, held_up), strict=True)) if waiting else {}
    return [results[index] for index in range(len(works))]


def as_reward(func: Callable[..., Any], value: Any) -> float | GraderFailure:
    """Return the value as a float, or a failure if it is not a finite number."""
    try:
        number = float(value) if type(value) in _NUMBERS else None
    except OverflowError:
        number = None
    if number is None:
        kind = repr(value[:100]) if type(value) is str else f"a value of type {type(value).__name__}"
        detail = f"{_name(func)} returned {kind}, which is neither a number nor None: return float(…) of it"
        return GraderFailure(Outcome.GRADER_ERROR, detail)
    if not math.isfinite(number):
        return GraderFailure(Outcome.GRADER_ERROR, f"{_name(func)} returned {number}, which is not a finite number")
    return number


def describe_exception(error: BaseException) -> str:
    """Return the traceback, beginning at the reward function, without memory addresses: they differ between runs."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, frames)).strip()
    return cut(_ADDRESS.sub("0x…", redact(text)), MAX_DETAIL)


def decide_outcome(correctness: float | None, well_formed: bool, truncated: bool) -> Outcome:
    """Return the outcome of a graded completion: the first member of `Outcome` that applies.

    `correctness` is the unweighted value of the rubric's correctness function, or None if the function abstained.
    `well_formed`: the parser found an answer. `truncated`: the length limit stopped sampling.
    """
    if correctness is not None and correctness >= 1.0:
        return Outcome.CORRECT
    if well_formed:
        return Outcome.WRONG
    return Outcome.TRUNCATED if truncated else Outcome.UNPARSABLE


def _wait(
    awaitables: list[Awaitable[Any]], timeout: float | None, held_up: Callable[[], None]
) -> list[Any | GraderFailure]:
    """Await all awaitables: in a separate thread if this thread already runs an event loop, as in a notebook."""

    async def main() -> list[Any | GraderFailure]:
        results = await asyncio.gather(*(_settle(awaitable, timeout, held_up) for awaitable in awaitables))
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return results

    if asyncio._get_running_loop() is None:
        return _run(main)
    try:
        return _beside(os.getpid()).submit(_run, main).result()
    except KeyboardInterrupt:
        _beside.cache_clear()  # what was interrupted may still be waiting there
        raise


def _run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main()` in this thread's event loop. All calls share one loop, because clients and locks need that."""
    runners: dict[int, asyncio.Runner] = vars(_of_thread).setdefault("runners", {})
    runner = runners.setdefault(os.getpid(), asyncio.Runner())
    try:
        return runner.run(main())
    except BaseException:
        runners.pop(os.getpid()).close()  # with its leftovers
        raise


@functools.cache
def _beside(process: int) -> ThreadPoolExecutor:
    """Return the process's executor of one thread. It runs async functions if the caller runs an event loop."""
    return ThreadPoolExecutor(1, "hone-reward")


async def _settle(awaitable: Awaitable[Any], timeout: float | None, held_up: Callable[[], None]) -> Any | GraderFailure:
    deadline = asyncio.timeout(timeout)
    try:
        async with deadline:
            return await awaitable
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if deadline.expired():
            if asyncio.get_running_loop().time() - (deadline.when() or 0.0) > _LATE_SECONDS:
                held_up()
            name = getattr(awaitable, "__name__", type(awaitable).__name__)
            return GraderFailure(Outcome.GRADER_TIMEOUT, f"{name} took {timeout:g} seconds")
        return GraderFailure(Outcome.GRADER_ERROR, describe_exception(error))


def last_line(text: str) -> str:
    """Return the last line of a failure's detail, escaped. The last line of a traceback is the exception."""
    return (printable(text).strip().splitlines() or ["no reason was given"])[-1]


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", type(func).__name__)


def cut(text: str, limit: int) -> str:
    """Cut the middle out of a text longer than `limit` characters. The end stays: it names a traceback's exception."""
    return text if len(text) <= limit else text[: limit // 4] + "\n…\n" + text[-3 * limit // 4 :]
