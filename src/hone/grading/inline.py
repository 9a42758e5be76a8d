"""Running reward functions in this process. A failure is a value here, never an exception and never a reward of 0."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from hone.types import Outcome

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,}")
_MAX_DETAIL = 4000


@dataclass(frozen=True)
class GraderFailure:
    """A reward function gave no usable value. `detail` says why: the traceback, or what it returned."""

    outcome: Outcome
    detail: str

    def __post_init__(self) -> None:
        assert self.outcome.is_failure


def accepted_names(func: Callable[..., Any], offered: tuple[str, ...]) -> tuple[str, ...]:
    """Which of the `offered` keyword arguments `func` takes: the names of its parameters, or all with `**kwargs`.

    Raises ValueError naming a parameter without default that is not offered. Costs a signature inspection: once per
    function.
    """
    names: list[str] = []
    for parameter in inspect.signature(func).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return offered
        if parameter.name in offered and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(parameter.name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL:
            raise ValueError(parameter.name)
    return tuple(names)


def attempt(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any | GraderFailure:
    """`func(*args, **kwargs)`, awaited if async. An exception (`sys.exit` too) is a failure; Ctrl-C is not caught."""
    try:
        value = func(*args, **kwargs)
        return _wait(value) if inspect.isawaitable(value) else value
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return GraderFailure(Outcome.GRADER_ERROR, describe_exception(error))


def run_reward(func: Callable[..., Any], kwargs: Mapping[str, Any]) -> float | GraderFailure | None:
    """What a reward function returns: a number, or None if it abstains.

    An exception, a value that is not a number, NaN and infinity are failures.
    """
    value = attempt(func, **kwargs)
    if value is None or isinstance(value, GraderFailure):
        return value
    return _as_reward(func, value)


def _as_reward(func: Callable[..., Any], value: Any) -> float | GraderFailure:
    try:
        number = float(value if isinstance(value, Real) else value.item())  # item: a zero-dimensional array or tensor
    except (AttributeError, ValueError, TypeError, RuntimeError, OverflowError):
        kind = repr(value[:100]) if isinstance(value, str) else f"a value of type {type(value).__name__}"
        return GraderFailure(Outcome.GRADER_ERROR, f"{_name(func)} returned {kind}, which is neither a number nor None")
    if not math.isfinite(number):
        return GraderFailure(Outcome.GRADER_ERROR, f"{_name(func)} returned {number}, which is not a finite number")
    return number


def describe_exception(error: BaseException) -> str:
    """The traceback from the reward function on, without memory addresses, so that two runs write the same text."""
    frames = error.__traceback__.tb_next if error.__traceback__ else None
    text = "".join(traceback.format_exception(type(error), error, frames)).strip()
    return _cut(_ADDRESS.sub("0x…", text), _MAX_DETAIL)


def decide_outcome(correctness: float | None, well_formed: bool, truncated: bool) -> Outcome:
    """The outcome of a completion that could be graded; the first that applies, as `Outcome` lists them.

    `correctness` is the value of the rubric's correctness function before its weight (None: it abstained);
    `well_formed` says that the parser found an answer; `truncated` that sampling was stopped by the length limit.
    """
    if correctness is not None and correctness >= 1.0:
        return Outcome.CORRECT
    if well_formed:
        return Outcome.WRONG
    return Outcome.TRUNCATED if truncated else Outcome.UNPARSABLE


def _wait(awaitable: Awaitable[Any]) -> Any:
    """The awaitable's result; on a thread of its own where an event loop is running already, as in a notebook."""

    async def main() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    result: list[Any] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            result.append(asyncio.run(main()))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target, name="hone-reward")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", type(func).__name__)


def _cut(text: str, limit: int) -> str:
    """At most `limit` characters: of a longer text the beginning and, where a traceback says what happened, the end."""
    return text if len(text) <= limit else text[: limit // 4] + "\n…\n" + text[-3 * limit // 4 :]
