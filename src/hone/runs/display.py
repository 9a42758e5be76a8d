"""A run's output while it works: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from hone.errors import for_reader
from hone.redaction import redact
from hone.runs.observer import Observer
from hone.runs.progress import Progress, duration
from hone.terminal import make_console, printable, safe

if TYPE_CHECKING:
    from rich.panel import Panel

    from hone.runs.writer import RunWriter

_INTERVAL = 2.0
"""Minimum seconds between two plain lines; evaluations, messages, the first and the last step are always shown."""


def say(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print at once, by default to standard output. If nobody reads the stream any more, the run continues."""
    with suppress(OSError):
        print(text, end=end, flush=True, file=stream)


class Display(Observer):
    """Keeps the run's state in `progress`; this base class shows nothing."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or Progress("rl", 0)

    def before_start(self, run: RunWriter) -> None:
        self.start(run.start_step)

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        self.progress.update(step, metrics, timings)

    def start(self, step: int) -> None:
        self.progress.start(step)

    def phase(self, name: str) -> None:
        self.progress.enter(name)

    def doing(self, words: str) -> None:
        """Show `words` as progress of the current phase; if "", show the name of the phase."""
        self.progress.doing = words or self.progress.phase

    def message(self, text: str) -> None:
        """Show a sentence that stays on the screen."""

    def notice(self, text: str) -> None:
        """Show a sentence; a signal handler may call this."""


def make_display(mode: str, progress: Progress, out: TextIO | None = None) -> Display:
    """Return the display for `mode` (auto, plain, none), writing to `out` (standard output)."""
    stream = safe(sys.stdout if out is None else out)
    if mode == "none":
        return Display(progress)
    encoding = (getattr(stream, "encoding", None) or "").lower()
    if mode == "auto" and stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and encoding.startswith("utf"):
        return LiveDisplay(progress, stream)
    return PlainDisplay(progress, stream)


class PlainDisplay(Display):
    """Prints ASCII lines for logs and pipes. A thread shows the phase of a step that takes longer than two seconds.

    Steps are counted from 1: `step 3/8` is the third step, done or current.
    """

    def __init__(self, progress: Progress, out: TextIO):
        super().__init__(progress)
        self._out = out
        self._lock = threading.Lock()
        self._last_line = self._last_step_line = float("-inf")
        self._printed_step: int | None = None
        self._printed_doing = ""
        self._closed = threading.Event()
        self._ticker = threading.Thread(target=self._watch, daemon=True)

    def start(self, step: int) -> None:
        super().start(step)
        self._last_line = self.progress.clock()
        self._ticker.start()

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        progress = self.progress
        first = progress.step is None
        progress.update(step, metrics, timings)
        self._printed_doing = ""
        if progress.eval_step == step:
            for line in progress.evaluation():
                self.message(f"held out, at step {step}: {line}")
        due = progress.clock() - self._last_step_line >= _INTERVAL
        if progress.step == step and (first or due or step == progress.max_steps - 1):
            self._show_step()

    def message(self, text: str) -> None:
        with self._lock:
            say(redact(for_reader(text)), self._out)
        self._last_line = self.progress.clock()

    def notice(self, text: str) -> None:
        # No lock and no buffer: the handler may have interrupted this thread inside `message`.
        try:
            os.write(self._out.fileno(), f"{printable(text)}\n".encode())
        except ValueError:  # no file behind it
            self._out.write(f"{text}\n")
        except OSError:
            pass  # nobody is there to read it, which is no reason to lose the run

    def at_end(self, status: str) -> None:
        self._closed.set()
        if self._ticker.is_alive():
            self._ticker.join()
        if self.progress.step != self._printed_step:
            self._show_step()

    def _show_step(self) -> None:
        progress = self.progress
        self._printed_step = progress.step
        width = len(str(progress.max_steps))
        left = [f"{duration(progress.left)} left"] if progress.left else []
        self.message("  ".join([f"step {progress.done:>{width}}/{progress.max_steps}", *progress.summary(), *left]))
        self._last_step_line = self._last_line

    def tick(self) -> None:
        """Show the current phase once it has taken two seconds. The thread calls this twice a second."""
        progress = self.progress
        doing, now = progress.doing, progress.clock()
        if doing and doing != self._printed_doing and now - max(self._last_line, progress.doing_since) >= _INTERVAL:
            self._printed_doing = doing
            self.message(f"step {progress.current + 1}/{progress.max_steps}: {doing} ...")

    def _watch(self) -> None:
        while not self._closed.wait(0.5):
            self.tick()


class LiveDisplay(Display):
    """A panel of a few lines that is redrawn four times a second; messages scroll above it."""

    def __init__(self, progress: Progress, out: TextIO):
        from rich.live import Live

        super().__init__(progress)
        self._console = make_console(out)
        self._notice = ""
        self._live = Live(
            get_renderable=lambda: panel(self.progress, self._console.width, self._notice),
            console=self._console,
            refresh_per_second=4,
        )

    def start(self, step: int) -> None:
        super().start(step)
        with suppress(OSError):  # here and below: a terminal that is gone is no reason to lose the run
            self._live.start()

    def message(self, text: str) -> None:
        with suppress(OSError):
            self._console.print(redact(for_reader(text)), markup=False, highlight=False, soft_wrap=True)

    def notice(self, text: str) -> None:
        self._notice = text  # drawn by the refresh thread: a signal handler must not wait for the console's lock

    def at_end(self, status: str) -> None:
        self.progress.doing = ""
        with suppress(OSError):
            self._live.stop()


def panel(progress: Progress, width: int, notice: str = "") -> Panel:
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1)
    left = "?" if progress.left is None else duration(progress.left)
    elapsed = duration(progress.clock() - progress.began)
    rows.add_row("steps", f"{progress.done}/{progress.max_steps}, {elapsed} elapsed, {left} left")
    rows.add_row("", ProgressBar(total=progress.max_steps, completed=progress.done, width=60))
    if progress.history:
        rows.add_row("latest", ", ".join(progress.summary()))
    for line in progress.evaluation():
        rows.add_row("held out", f"{line}, at step {progress.eval_step}")
    busy = progress.clock() - progress.doing_since
    if progress.doing and busy > 2:
        rows.add_row("now", Text(f"{progress.doing}, {busy:.0f} s", style="cyan"))
    if notice:
        rows.add_row("stop", Text(notice, style="bold yellow"))
    return Panel(rows, title=f"hone {progress.kind}", title_align="left", width=min(width, 100), border_style="dim")
