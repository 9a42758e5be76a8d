"""The live panel on a terminal, drawn by rich."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hone.runs.display import Display
from hone.runs.progress import Progress, duration, percent, sparkline

OUTCOME_STYLES = {
    "correct": "green",
    "wrong": "yellow",
    "truncated": "magenta",
    "unparsable": "red",
    "grader_error": "bold red",
    "grader_timeout": "bold red",
}
"""The style of each outcome, here and in reports."""


class LiveDisplay(Display):
    """A panel of a few lines that is redrawn four times a second; messages scroll above it."""

    def __init__(self, progress: Progress, out: TextIO):
        super().__init__(progress)
        self._console = Console(file=out)
        self._notice = ""
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)

    def start(self, step: int) -> None:
        super().start(step)
        with suppress(OSError):  # here and below: a terminal that is gone is no reason to lose the run
            self._live.start()

    def message(self, text: str) -> None:
        with suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def notice(self, text: str) -> None:
        self._notice = text  # drawn by the refresh thread: a signal handler must not wait for the console's lock

    def at_end(self, status: str) -> None:
        self.progress.doing = ""
        with suppress(OSError):
            self._live.stop()

    def _render(self) -> RenderableType:
        return panel(self.progress, self._console.width, self._notice)


def panel(progress: Progress, width: int, notice: str = "") -> Panel:
    """Return the panel for a state of the run, at most 100 columns wide."""
    width = min(width, 100)
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1)
    left = "?" if progress.left is None else duration(progress.left)
    rows.add_row("steps", f"{progress.done}/{progress.max_steps}, {duration(progress.elapsed)} gone, {left} left")
    rows.add_row("", ProgressBar(total=progress.max_steps, completed=progress.done, width=60))
    if progress.history:
        name = "loss" if progress.kind == "sft" else "reward"
        rows.add_row(name, Text(sparkline(progress.history, max(8, min(60, width - 16))), style="cyan"))
        rows.add_row("latest", ", ".join(progress.summary()))
    if outcomes := _outcomes(progress.metrics):
        rows.add_row("outcomes", outcomes)
    for line in progress.evaluation():
        rows.add_row("held out", f"{line}, at step {progress.eval_step}")
    now = progress.clock() - progress.doing_since
    if progress.doing and now > 2:
        rows.add_row("now", Text(f"{progress.doing}, {now:.0f} s", style="cyan"))
    parts: list[RenderableType] = [rows]
    if notice:
        parts.append(Text(notice, style="bold yellow"))
    return Panel(Group(*parts), title=f"hone {progress.kind}", title_align="left", width=width, border_style="dim")


def _outcomes(metrics: Mapping[str, Any]) -> Text | None:
    shares = [(name, style, metrics.get(f"outcome/{name}") or 0.0) for name, style in OUTCOME_STYLES.items()]
    parts = [Text(f"{name.replace('_', ' ')} {percent(share)}", style=style) for name, style, share in shares if share]
    return Text("  ").join(parts) if parts else None
