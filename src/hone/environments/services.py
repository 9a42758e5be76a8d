"""Reward services, and the record of their replies in a run's `judgements.jsonl`."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import IO, Any, ClassVar, Literal
from weakref import WeakKeyDictionary, WeakValueDictionary

from hone.errors import UserError
from hone.redaction import add_key_variable
from hone.runs.view import JUDGEMENTS
from hone.types import content_hash
from hone.web import shown_url

VARIABLE = "HONE_JUDGEMENTS"
"""Environment variable "MODE:FILE" that tells grading processes how and where to record replies (see `record_in`)."""


class Service:
    """A reward function that calls a service. It is async and, as it only waits, needs no worker process."""

    name: str
    api_key_env: str | None
    timeout: float
    retries: int
    concurrency: int
    inline = True

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise UserError(f"{self.name!r} is no name for a reward: take letters, digits and _")
        if self.api_key_env is not None and not self.api_key_env.isidentifier():  # not shown: it may be the key
            raise UserError(f"api_key_env of {self.name!r} takes the name of a variable, not the key itself")
        add_key_variable(self.api_key_env)
        self.__name__, self.gate = self.name, _Gate(self.concurrency)

    @property
    def patience(self) -> float:
        """Seconds that grading may wait: enough for one try that hangs and one late answer."""
        return 2 * self.timeout

    @property
    def source(self) -> str:
        """Python code that recreates the service after `import hone`. It omits the URL's query values."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}  # type: ignore[arg-type]
        given |= {name: shown_url(given[name]) for name in ("url", "base_url") if given.get(name)}
        return f"hone.{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


async def recorded(name: str, asked: Any, ask: Callable[[], Any], gate: _Gate) -> dict[str, Any]:
    """Return the recorded reply to a question. If there is none, ask the service and record its reply."""
    key, replies = content_hash([name, asked]), Replies.here()
    if (known := replies.find(key)) is not None:
        return known
    if replies.only:
        raise LookupError(f"the run has no reply of {name} to this question, and a check asks no service")
    async with gate.same(key), gate():
        if (known := replies.find(key)) is None:  # another sample may have asked the same meanwhile
            known = replies.add(key, name, await ask())
    return known


class _Gate:
    """Limits concurrent requests per event loop: graders may run in another thread's loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._of_loop: WeakKeyDictionary[Any, asyncio.Semaphore] = WeakKeyDictionary()
        self._same: WeakValueDictionary[Any, asyncio.Lock] = WeakValueDictionary()

    def __call__(self) -> asyncio.Semaphore:
        return self._of_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.most))

    def same(self, key: str) -> asyncio.Lock:
        """Return the lock of a question, so that equal questions share one reply."""
        return self._same.setdefault((id(asyncio.get_running_loop()), key), asyncio.Lock())


class Replies:
    """Recorded replies: in a file that several processes write, or, without a file, in memory."""

    _known: ClassVar[dict[str, Replies]] = {}

    def __init__(self, path: Path | None, mode: str = "") -> None:
        self.path, self.writes, self.only = path, mode == "record", mode == "only"
        self._replies: dict[str, dict[str, Any]] = {}
        self._read, self._lock = 0, threading.Lock()

    @classmethod
    def here(cls) -> Replies:
        """Return the replies of the run that this process grades for."""
        named = os.environ.get(VARIABLE, ":")
        if named not in cls._known:
            mode, _, path = named.partition(":")
            cls._known[named] = cls(Path(path) if path else None, mode)
        return cls._known[named]

    def find(self, key: str) -> dict[str, Any] | None:
        if key not in self._replies and self.path is not None and self.path.is_file():
            with self._lock, open(self.path, "rb") as file:
                self._read_on(file)
        return self._replies.get(key)

    def add(self, key: str, name: str, reply: dict[str, Any]) -> dict[str, Any]:
        """Record a reply, unless another process has answered this question; return the recorded reply."""
        line = json.dumps({"key": key, "name": name, **reply}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with self._lock:
            if self.path is not None and self.writes:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with open(self.path, "ab+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)
                    self._read_on(file)
                    if key not in self._replies:
                        is_cut = self._read < file.seek(0, os.SEEK_END)  # by a kill
                        file.write(b"\n" * is_cut + line)
            return self._replies.setdefault(key, reply)

    def _read_on(self, file: IO[bytes]) -> None:
        file.seek(self._read)
        for line in file:
            if not line.endswith(b"\n"):
                break
            self._read += len(line)
            if (found := _parsed(line)) is not None:
                self._replies.setdefault(found.pop("key"), found)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return the reply in a line of the file; None if the line was cut off."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and {"key", "name"} <= found.keys() else None


def record_in(folder: Path | None, mode: Literal["record", "read", "only"] = "record") -> None:
    """Record services' replies in a run's folder (None: nowhere), in this process and its children.

    The mode "read" uses recorded replies, and records no new ones. "only" is like "read", but asks no service.
    """
    Replies._known.clear()
    os.environ[VARIABLE] = ":" if folder is None else f"{mode}:{folder.absolute() / JUDGEMENTS}"


def usage(folder: Path) -> str | None:
    """Return the number of replies, tokens and cost of a run's services as a text; None without replies."""
    path = folder / JUDGEMENTS
    if not path.is_file():
        return None
    lines = [found for line in path.read_bytes().splitlines() if (found := _parsed(line)) is not None]
    words = f"{len(lines):,} repl{'y' if len(lines) == 1 else 'ies'} of {', '.join(sorted({x['name'] for x in lines}))}"
    tokens = [sum(line.get(name, 0) for line in lines) for name in ("tokens_in", "tokens_out")]
    cost = sum(line.get("cost", 0.0) for line in lines)
    words += f", {tokens[0]:,} tokens in and {tokens[1]:,} out" if any(tokens) else ""
    return words + (f", at a cost of {cost:.3g} by the given prices" if cost else "")
