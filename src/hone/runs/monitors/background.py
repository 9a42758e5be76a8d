"""Each monitor in a thread of its own: the run tells it things and goes on, whatever it does with them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hone.config.shared import RunConfig
from hone.runs.monitors import Monitor, MonitorError, make_monitors, tracked, warnings
from hone.runs.monitors.samples import chosen
from hone.runs.observer import Observer

if TYPE_CHECKING:
    from hone.runs.alarms import Alarm
    from hone.runs.writer import RunWriter

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


class Monitors(Observer):
    """All monitors that a run's config asks for. Everything here is called by the run's own thread, and returns at once
    but for `at_end`. One that failed is told to the user, once.
    """

    def __init__(self, config: RunConfig) -> None:
        self._monitors: list[Monitor] = []
        self._config = config
        self._all: list[Background] = []

    @property
    def idle(self) -> bool:
        """Whether they are done with all that they were told."""
        return all(one.idle for one in self._all)

    def check(self, training: Any) -> None:
        if training is not None:
            self._config = training.config  # with the task that a program gave
        self._monitors = make_monitors(self._config)  # UserError if a package is missing

    def before_start(self, run: RunWriter) -> None:
        self.run = run
        run.note(**tracked(self._config, run.info))
        for text in warnings(self._config):
            run.display.message(text)
        self._all = [Background(monitor) for monitor in self._monitors]
        self._tell("start", run.folder, dict(run.info), self._config)

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        standing = {f"alarm/{name}": 1.0 for name in self.run.alarms.standing}
        self._tell("log", step, {**metrics, **standing}, timings)

    def rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        for one in self._all:
            # Chosen here, so that what waits for a slow monitor is a few rows, not the step's tokens.
            if count := one.monitor.samples_of(step):
                one.tell("samples", step, chosen(rows, count))

    def alarm(self, alarm: Alarm) -> None:
        found = alarm.finding
        text = f"{found.evidence}. What helps: {found.advice}."
        self._tell("alarm", alarm.step, alarm.name, text, alarm.action)

    def at_end(self, status: str) -> None:
        """Waits until they have sent what they have, `FINISH_SECONDS` at most."""
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
                self.run.display.message(one.notes.get())
            if one.failure is not None:
                self._all.remove(one)
                self._tell_failure(one.monitor.name, one.failure)

    def _tell_failure(self, name: str, cause: str) -> None:
        with suppress(OSError):  # a full disk stops the run where it has something of its own to write
            self.run.event("monitor_failed", None, monitor=name, cause=cause)
        self.run.display.message(f"{name} failed ({cause}); the run goes on without it.")
