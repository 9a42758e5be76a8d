"""Errors that a user can cause. The command line prints the error's sentence without a traceback and exits with 2."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

KEYWORDS = {"reward": "reward_funcs", "data": "dataset", "eval_data": "eval_dataset"}
"""Keys of RLConfig → keywords of `hone.rl` that take objects instead."""
_COMMANDS = re.compile(r"(`[^`]*`|\b(?:hone|rl|sft|inference|pip) [^;,()]*)")
_FLAG = re.compile(r"--(no-)?([a-z][\w.-]*\w)(?: (?:[A-Z][A-Z_:/]*\b|(\d[\w.-]*)))?")
_from_python: ContextVar[bool | None] = ContextVar("from_python", default=None)


class UserError(ValueError):
    """One sentence that names the problem and a remedy."""


def in_python(text: str) -> str:
    """Return a message with keywords instead of flags, except in commands: `--no-audit` → `audit=False`."""

    def keyword(match: re.Match[str]) -> str:
        name = match[2].replace("-", "_")
        return f"{KEYWORDS.get(name, name)}{'=False' if match[1] else f'={match[3]}' if match[3] else ''}"

    parts = _COMMANDS.split(text)
    return "".join(part if index % 2 else _FLAG.sub(keyword, part) for index, part in enumerate(parts))


def for_reader(text: str) -> str:
    return in_python(text) if _from_python.get() else text


@contextmanager
def called_from(python: bool) -> Iterator[None]:
    """In the block, messages name keywords if `python` is true, else flags. The outermost block decides."""
    if _from_python.get() is not None:
        yield
        return
    before = _from_python.set(python)
    try:
        yield
    except UserError as error:
        error.args = (for_reader(str(error)), *error.args[1:])
        raise
    finally:
        _from_python.reset(before)


class Halt(UserError):
    """Ends a run after the loop has saved the state and `metrics`. The message has no full stop: hone adds a remedy."""

    def __init__(self, text: str, metrics: Mapping[str, float] | None = None) -> None:
        super().__init__(text)
        self.metrics = dict(metrics or {})


class AlarmStop(Halt):
    """The alarm or observer `name` stops the run after a step. This is no failure. `remedy`: how to avoid the stop."""

    def __init__(self, step: int, name: str, remedy: str) -> None:
        how = f"the alarm {name} ({remedy.format(name.replace('_', '-'))})" if remedy else name
        super().__init__(f"stopped at step {step} by {how}")
        self.name = name


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


class RankLost(RuntimeError):
    """Another rank's process has ended during a collective call. The command line exits with code 1."""

    def __init__(self) -> None:
        super().__init__(
            "another rank of this run has ended; its last lines are above, or in its log. Go on from the last "
            "checkpoint with --resume"
        )
