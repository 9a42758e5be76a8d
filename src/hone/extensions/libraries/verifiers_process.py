"""Runs the process that makes episodes by verifiers (`verifiers_driver.py`).

found = await Driver(python, script, order, "verifiers:my-taskset").episode({"index": 7, "task": key, "url": …, …})
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.extensions.agents.rewards import ProgramFailed
from hone.grading.pool import readable
from hone.processes import Process
from hone.web import without_local_proxy

LOAD_CLOCK = 3600.0
"""Clock seconds to load a taskset. The limit is high, because a download may take long."""
END_SECONDS = 10.0
"""Seconds for verifiers to end its child processes."""
CONFIRM_SECONDS = 5.0
"""Seconds to wait until the process confirms a cancelled episode. After that, the process counts as blocked."""

BLOCKED = "a reward, a tool or a hook that waits must `await`"


class Driver:
    """Runs `verifiers_driver.py` in a process, and replaces a process that has ended or is blocked."""

    def __init__(self, python: Path, script: Path, order: dict[str, Any], name: str) -> None:
        self._command = [str(python), "-P", str(script), json.dumps(order)]
        self._name = name
        self._lock = threading.Lock()
        self._process: DriverProcess | None = None
        self._numbers = itertools.count()

    def start(self) -> DriverProcess:
        """Return the running process, or start a process. Raises UserError if the process does not get ready."""
        with self._lock:
            if self._process is not None and self._process.is_alive and not self._process.confirms_cancels():
                print(f"{self._name} is blocked and replaced: {BLOCKED}", file=sys.stderr, flush=True)
                self._process.kill()
            if self._process is None or not self._process.is_alive:
                self._process = DriverProcess(self._command, self._name)
            return self._process

    async def episode(self, order: dict[str, Any]) -> dict[str, Any]:
        """Run an episode; return its `verifiers_driver.summary`. Raises ProgramFailed if the process ends."""
        try:
            process = await asyncio.to_thread(self.start)
        except UserError as error:
            raise ProgramFailed(str(error)) from None
        return await process.episode(next(self._numbers), order)

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.end()
            self._process = None


class DriverProcess:
    def __init__(self, command: list[str], name: str) -> None:
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        pipe = subprocess.PIPE
        env = {**os.environ, **without_local_proxy(os.environ)}
        self._process = process = Process(
            command, env=env, mark="HONE_VERIFIERS", stdin=pipe, stdout=pipe, stderr=self._words
        )
        self.end = weakref.finalize(self, _end, process)
        self._sending = threading.Lock()
        self._open: dict[int, Future[dict[str, Any]]] = {}
        self._given_up: dict[int, threading.Event] = {}
        """Cancelled episodes that are not confirmed yet, by number."""
        self._is_over = self._is_blocked = False
        if not (readable(process.stdout.fileno(), LOAD_CLOCK) and process.stdout.readline()):
            self.end()
            raise UserError(f"{name} cannot be run: {self._last_words()}")
        threading.Thread(target=_read, args=(weakref.ref(self), process), name="verifiers", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return not self._is_over and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def episode(self, number: int, order: dict[str, Any]) -> dict[str, Any]:
        """Run an episode; return its summary. Raises ProgramFailed if the process ends."""
        future = self._open[number] = Future[dict[str, Any]]()
        future.set_running_or_notify_cancel()  # from now on only `take` and `lose` settle it
        try:
            self._send({"number": number, **order})
            if self._is_over:
                self.lose()
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._open.pop(number, None)
            self._given_up[number] = threading.Event()
            with suppress(ProgramFailed):
                self._send({"cancel": number})
            if self._is_over:
                self.lose()
            raise
        finally:
            self._open.pop(number, None)

    def take(self, found: dict[str, Any]) -> None:
        if (event := self._given_up.pop(found["number"], None)) is not None:
            event.set()
        if (future := self._open.pop(found["number"], None)) is not None:
            future.set_result(found)

    def confirms_cancels(self) -> bool:
        return all(event.wait(CONFIRM_SECONDS) for event in list(self._given_up.values()))

    def kill(self) -> None:
        self._is_blocked = True
        self._process.kill()
        self.end()

    def lose(self) -> None:
        """Make all open episodes fail, because the process has ended."""
        self._is_over = True
        while self._given_up:
            self._given_up.popitem()[1].set()
        for number in list(self._open):
            if (future := self._open.pop(number, None)) is not None:
                future.set_exception(self._lost())

    def _lost(self) -> ProgramFailed:
        return ProgramFailed(f"verifiers' process has ended: {self._last_words()}")

    def _send(self, order: dict[str, Any]) -> None:
        try:
            with self._sending:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._lost() from None

    def _last_words(self) -> str:
        if self._is_blocked:
            return f"something blocks it: {BLOCKED}"
        text = os.pread(self._words.fileno(), 2**14, max(0, os.fstat(self._words.fileno()).st_size - 2**14))
        lines = text.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _read(held: weakref.ref[DriverProcess], process: Process) -> None:
    for line in process.stdout:
        if (here := held()) is not None:
            here.take(json.loads(line))
        here = None
    if (here := held()) is not None:
        here.lose()
        here.end()


def _end(process: Process) -> None:
    if process.poll() is None:
        with suppress(OSError):
            process.stdin.close()
        process.wait(END_SECONDS)
    process.kill_marked()
    process.wait()
