"""What a run shows while it works: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from hone.runs.observer import Observer
from hone.runs.progress import Progress, duration

if TYPE_CHECKING:
    from hone.runs.writer import RunWriter

_INTERVAL = 2.0
"""Least seconds between two plain lines; evaluations, messages, the first and the last step are always shown."""


class Display(Observer):
    """What a run tells the screen; this one shows nothing."""

    def before_start(self, run: RunWriter) -> None:
        self.start(run.start_step)

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        self.step(step, dict(metrics), dict(timings))

    def at_end(self, status: str) -> None:
        self.close()

    def start(self, step: int) -> None:
        """The loop begins at `step`."""

    def phase(self, name: str) -> None:
        """A part of the step begins: sample, grade, train, evaluate, …"""

    def doing(self, words: str) -> None:
        """How far that part has come, in words."""

    def step(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        """The step's lines, as they were written to disk."""

    def message(self, text: str) -> None:
        """A sentence that stays on the screen."""

    def notice(self, text: str) -> None:
        """Like `message`, but safe inside a signal handler."""

    def close(self) -> None:
        """Nothing more is shown."""


def make_display(
    mode: str, kind: str, max_steps: int, out: TextIO | None = None, progress: Progress | None = None
) -> Display:
    """The display for `mode` (auto, plain, none), writing to `out` (standard output); of `progress`, if it is given."""
    stream: TextIO = sys.stdout if out is None else out
    progress = progress or Progress(kind, max_steps)
    if mode == "none":
        return Display()
    if mode == "auto" and _is_rich_terminal(stream):
        from hone.runs.live import LiveDisplay

        return LiveDisplay(progress, stream)
    return PlainDisplay(progress, stream)


def _is_rich_terminal(out: TextIO) -> bool:
    encoding = (getattr(out, "encoding", None) or "").lower()
    return out.isatty() and os.environ.get("TERM", "dumb") != "dumb" and encoding.startswith("utf")


class PlainDisplay(Display):
    """ASCII lines for logs and pipes; a thread says what a step is busy with when it takes longer than two seconds.

    `step 3/8` is the third step, done or being taken: people count from 1.
    """

    def __init__(self, progress: Progress, out: TextIO):
        self._progress = progress
        self._out = out
        self._lock = threading.Lock()
        self._last_line = self._last_step_line = float("-inf")
        self._shown_step: int | None = None
        self._shown_doing = ""
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._watch, daemon=True)

    def start(self, step: int) -> None:
        self._progress.start(step)
        self._last_line = self._progress.clock()
        self._ticker.start()

    def phase(self, name: str) -> None:
        self._progress.enter(name)

    def doing(self, words: str) -> None:
        self._progress.tell(words)

    def step(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        progress = self._progress
        first = progress.step is None
        progress.update(step, metrics, timings)
        self._shown_doing = ""
        if progress.eval_step == step:
            for line in progress.evaluation():
                self._print(f"held out, at step {step}: {line}")
        due = progress.clock() - self._last_step_line >= _INTERVAL
        if progress.step == step and (first or due or step == progress.max_steps - 1):
            self._show_step()

    def message(self, text: str) -> None:
        self._print(text)

    def notice(self, text: str) -> None:
        # No lock and no buffer: the handler may have interrupted this thread inside `_print`.
        try:
            os.write(self._out.fileno(), f"{text}\n".encode())
        except ValueError:  # no file behind it
            self._out.write(f"{text}\n")
        except OSError:
            pass  # nobody is there to read it, which is no reason to lose the run

    def close(self) -> None:
        self._closed.set()
        if self._ticker.is_alive():
            self._ticker.join()
        if self._progress.step != self._shown_step:
            self._show_step()

    def _show_step(self) -> None:
        progress = self._progress
        self._shown_step = progress.step
        width = len(str(progress.max_steps))
        parts = [f"step {progress.done:>{width}}/{progress.max_steps}", *progress.summary()]
        if progress.left:
            parts.append(f"{duration(progress.left)} left")
        self._print("  ".join(parts))
        self._last_step_line = self._last_line

    def tick(self) -> None:
        """Say what the step is busy with, once, if it has been for two seconds. The thread calls it twice a second."""
        progress = self._progress
        doing, now = progress.doing, progress.clock()
        if doing and doing != self._shown_doing and now - max(self._last_line, progress.doing_since) >= _INTERVAL:
            self._shown_doing = doing
            self._print(f"step {progress.current + 1}/{progress.max_steps}: {doing} ...")

    def _watch(self) -> None:
        while not self._closed.wait(0.5):
            self.tick()

    def _print(self, text: str) -> None:
        with self._lock, suppress(OSError):  # a reader that has left is no reason to lose the run
            self._out.write(f"{text}\n")
            self._out.flush()
        self._last_line = self._progress.clock()
