"""Reading what may be anything: the files of a run that somebody sent, or that a disk has damaged.

Whatever is read of a run passes here, so that nothing that reads runs has to ask again: a file is a regular one of
bounded size, JSON is finite and not deep, and run.json has the types that `RunFacts` says.
"""

from __future__ import annotations

import json
import math
import os
import stat
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from hone.errors import UserError

RESTORE = "mend it, or restore it from a copy"
"""What to do about a damaged file."""
NUMBERS = ("metrics.jsonl", "timings.jsonl")
"""Logs whose records are a step and numbers."""
EVENTS = "events.jsonl"
DEPTH = 64
"""Lists and tables inside each other that a file of a run may have."""
LARGEST_NUMBER = 1e300
_NUMBERS = {int, float, bool, type(None)}
LARGEST_DOCUMENT, LARGEST_LOG = 2**26, 2**31
"""Bytes that a file which is read whole may have, and a log: larger ones are no run's."""


def read_file(path: Path, remedy: str = RESTORE, most: int = LARGEST_DOCUMENT) -> bytes:
    """The bytes of a file of a run. UserError with the remedy if it can't be read, or has more than `most` bytes."""
    with open_file(path, remedy) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise UserError(f"{path} has {size:,} bytes, and a run's have at most {most:,}: {remedy}")
        return file.read()


def open_file(path: Path, remedy: str = RESTORE) -> BufferedReader:
    """Open a file of a run for reading. UserError with the remedy if it is no regular file (a pipe would be waited for,
    for ever), or may not be read; FileNotFoundError if there is none.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
        problem = "it is no regular file"
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not path.is_symlink():
            raise
        problem = "it is a link to nothing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
    raise UserError(f"{path} cannot be read ({problem}): {remedy}")


def is_step(value: Any, optional: bool = False) -> bool:
    """Return True for a whole number that can be a step; with `optional` for None, too."""
    return (value is None and optional) or (type(value) is int and 0 <= value < 2**53)


def is_number(value: Any) -> bool:
    """Return True for what a metric may be: a finite number, a truth value, or None for what was not finite."""
    return value is None or (isinstance(value, int | float) and -LARGEST_NUMBER < value < LARGEST_NUMBER)


def check_event(record: dict[str, Any]) -> None:
    """ValueError if what readers use of an event is of another type."""
    if wrong := [name for name in ("kind", "name", "evidence") if not isinstance(record.get(name, ""), str)]:
        raise ValueError(f"its {wrong[0]} is no text")
    parse_time(record.get("time"))


def parse_time(stamp: Any) -> datetime | None:
    """An ISO time in this machine's time zone; None for None or "". ValueError for what is no time."""
    if not isinstance(stamp, str | None):
        raise ValueError("a time is no text")
    try:
        return datetime.fromisoformat(stamp).astimezone() if stamp else None
    except OverflowError:
        raise ValueError(f"{stamp!r} is no time") from None


def parse_json(text: str | bytes) -> Any:
    """A JSON value. ValueError if it isn't one that hone writes: for NaN, an infinity, a number that no float holds,
    and for one nested deeper than `DEPTH`.
    """
    value = load_json(text)
    check_plain(value)
    return value


def load_json(text: str | bytes) -> Any:
    """`json.loads`, with a ValueError for what is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def check_numbers(record: dict[str, Any]) -> None:
    """ValueError if a value is no finite number, truth value or None. Fast, for a log has millions of them."""
    values = record.values()
    try:
        if set(map(type, values)) <= _NUMBERS and math.isfinite(sum(filter(None, values))):
            return
    except OverflowError:
        pass
    wrong = next((name for name, value in record.items() if not is_number(value)), "a value")
    raise ValueError(f"{wrong[:60]!r} is no finite number")


def check_plain(value: Any, depth: int = DEPTH, finite: bool = True) -> None:
    """ValueError if a parsed value holds a number that no float holds, or, with `finite`, one that is not finite, or if
    it is nested deeper than `depth`.
    """
    if isinstance(value, dict | list):
        if depth == 0:
            raise ValueError("nested too deeply")
        for one in value.values() if isinstance(value, dict) else value:
            check_plain(one, depth - 1, finite)
    elif isinstance(value, int | float if finite else int) and not -LARGEST_NUMBER < value < LARGEST_NUMBER:
        raise ValueError("a number that is not finite")


def _stamp(stamp: str | None) -> str | None:
    parse_time(stamp)
    return stamp


class _Facts(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Git(_Facts):
    revision: str
    dirty: bool


class _Hardware(_Facts):
    cpu: str = ""
    cores: int = 0
    memory_gib: float = 0.0
    gpu: list[str] | None = None


class _Parent(_Facts):
    id: str
    dir: str
    step: int


class _Change(_Facts):
    """Something else than before, from a step on."""

    step: Annotated[int, Field(ge=0)]


class _Cause(_Change):
    cause: str


class _Resume(_Change):
    time: Annotated[str, AfterValidator(_stamp)]
    ranks: Annotated[int, Field(ge=1)] = 1


class RunFacts(_Facts):
    """The types of what readers use of run.json. None of it is needed here: older runs lack some."""

    id: str
    kind: Literal["rl", "sft", "eval"]
    status: str = ""
    exact: bool = True
    inexact: list[_Cause] = []
    seed: int = 0
    command: list[str] = []
    started: Annotated[str | None, AfterValidator(_stamp)] = None
    ended: Annotated[str | None, AfterValidator(_stamp)] = None
    seconds: float | None = None
    usd: float | None = None
    git: _Git | None = None
    versions: dict[str, str | None] = {}
    hardware: _Hardware = _Hardware()
    threads: int | None = None
    ranks: Annotated[int, Field(ge=1)] = 1
    variables: dict[str, str] = {}
    untracked: list[str] = []
    sources: dict[str, str] = {}
    resumes: list[_Resume] = []
    parent: _Parent = _Parent(id="", dir="", step=0)
    reward_weights: dict[str, float] | None = None
    exactness: dict[str, str] = {}
    drift: list[_Change] = []
    predictions: dict[str, Any] = {}
    pool: int | None = None
    failure: str | None = None
    stopped_by: str | None = None


def check_run_info(info: dict[str, Any], path: Path, remedy: str = RESTORE) -> None:
    """UserError with the remedy if the run.json at `path` has a value of another type than hone writes."""
    try:
        RunFacts.model_validate(info)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:80]
        raise UserError(f"{path} is damaged ({place}: {first['msg']}): {remedy}") from None
