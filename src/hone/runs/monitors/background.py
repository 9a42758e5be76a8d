"""Each monitor in a thread of its own: the run tells it things and goes on, whatever it does with them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hone.config.shared import RunConfig
from hone.runs.monitors import Monitor, MonitorError
from hone.runs.monitors.samples import chosen

WAITING = 10_000
"""Messages that may wait for a monitor: of each step one or two, of some KB."""
SILENT_SECONDS = 120.0
"""A monitor that takes this long for one message hangs. Above the minute that W&B's start may take."""
FINISH_SECONDS = 30.0
"""How long the end of a run waits for its monitors, all together."""


def cause_of(error: BaseException) -> str:
    """The kind of an error, and the first line of its message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class Background:
    """One monitor, in a daemon thread. Once it failed (`failure` says how) it is told nothing more."""

    def __init__(self, monitor: Monitor):
        self.monitor = monitor
        self.failure: str | None = None
        self.notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        """What it has to say to the user."""
        self._queue: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(WAITING)
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._work, name=f"monitor {monitor.name}", daemon=True)
        self._thread.start()

    def tell(self, method: str, *args: Any) -> None:
        """Have `method` called, after what it was told before."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > SILENT_SECONDS:
            self._fail(f"no answer for {SILENT_SECONDS:.0f} s")
        if self.failure is not None:
            return
        try:
            self._queue.put_nowait((method, args))
        except queue.Full:
            self._fail(f"{WAITING} messages behind")

    @property
    def idle(self) -> bool:
        """Whether it is done with all that it was told."""
        return self._queue.unfinished_tasks == 0 or self.failure is not None

    def wait(self, until: float) -> None:
        """Wait, after `finish` was told, until it is done, or left behind when the monotonic clock says `until`."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._fail(f"not done {FINISH_SECONDS:.0f} s after the end of the run")
        self.monitor.abandon()

    def interrupted(self) -> None:
        """Leave it behind: the user doesn't want to wait."""
        if self._thread.is_alive():
            self._fail("interrupted before it was done")

    def _fail(self, cause: str) -> None:
        self.failure = self.failure or cause
        self.monitor.abandon()

    def _work(self) -> None:
        method = ""
        while method != "finish" and self.failure is None:
            method, args = self._queue.get()
            self._busy_since = time.monotonic()
            try:
                note = getattr(self.monitor, method)(*args)
            except BaseException as error:
                self._fail(str(error) if isinstance(error, MonitorError) else cause_of(error))
                return
            self._busy_since = None
            self._queue.task_done()
            if note:
                self.notes.put(note)
        self.monitor.abandon()  # what it started, if it was left behind meanwhile


class Monitors:
    """All monitors of a run. Everything here is called by the run's own thread, and returns at once but for `finish`.

    `failed(name, cause)` is called once for each that failed, `say` with what they have to say: by that thread, too,
    when the next thing is told.
    """

    def __init__(
        self, monitors: Sequence[Monitor], failed: Callable[[str, str], None], say: Callable[[str], None]
    ) -> None:
        self._all = [Background(monitor) for monitor in monitors]
        self._failed, self._say = failed, say

    @property
    def idle(self) -> bool:
        """Whether they are done with all that they were told."""
        return all(one.idle for one in self._all)

    def start(self, folder: Path, info: dict[str, Any], config: RunConfig) -> None:
        """`info` is run.json's."""
        self._tell("start", folder, info, config)

    def log(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        """The step's lines of metrics.jsonl and timings.jsonl."""
        self._tell("log", step, metrics, timings)

    def samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        """The step's rows of its rollouts (`hone.runs.rollouts.schema`)."""
        for one in self._all:
            # Chosen here, so that what waits for a slow monitor is a few rows, not the step's tokens.
            if count := one.monitor.samples_of(step):
                one.tell("samples", step, chosen(rows, count))

    def alarm(self, step: int, name: str, text: str, action: str) -> None:
        """An alarm was raised: its evidence in words, and what is done about it."""
        self._tell("alarm", step, name, text, action)

    def finish(self, status: str) -> None:
        """The run ended with `status`: waits until they have sent what they have, `FINISH_SECONDS` at most."""
        self._tell("finish", status)
        until = time.monotonic() + FINISH_SECONDS
        try:
            for one in self._all:
                one.wait(until)
        except KeyboardInterrupt:
            for one in self._all:
                one.interrupted()
        self._report()
        self._all = []

    def _tell(self, method: str, *args: Any) -> None:
        for one in self._all:
            one.tell(method, *args)
        self._report()

    def _report(self) -> None:
        for one in list(self._all):
            while not one.notes.empty():
                self._say(one.notes.get())
            if one.failure is not None:
                self._all.remove(one)
                self._failed(one.monitor.name, one.failure)
