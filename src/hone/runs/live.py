"""The live panel on a terminal, drawn by rich."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hone.runs.display import Display
from hone.runs.progress import Progress, duration, in_turns, percent, short_seconds, sparkline, thousands

OUTCOME_STYLES = {
    "correct": "green",
    "wrong": "yellow",
    "truncated": "magenta",
    "unparsable": "red",
    "grader_error": "bold red",
    "grader_timeout": "bold red",
}
"""How rich shows each outcome, here and in reports."""


class LiveDisplay(Display):
    """A panel of a few lines that is redrawn four times a second; messages scroll above it."""

    def __init__(self, progress: Progress, out: TextIO):
        self._progress = progress
        self._console = Console(file=out)
        self._notice = ""
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)

    def start(self, step: int) -> None:
        self._progress.start(step)
        with suppress(OSError):  # here and below: a terminal that is gone is no reason to lose the run
            self._live.start()

    def phase(self, name: str) -> None:
        self._progress.enter(name)

    def doing(self, words: str) -> None:
        self._progress.tell(words)

    def step(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        self._progress.update(step, metrics, timings)

    def message(self, text: str) -> None:
        with suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def notice(self, text: str) -> None:
        self._notice = text  # drawn by the refresh thread: a signal handler must not wait for the console's lock

    def close(self) -> None:
        self._progress.doing = ""
        with suppress(OSError):
            self._live.stop()

    def _render(self) -> RenderableType:
        return panel(self._progress, self._console.width, self._notice)


def panel(progress: Progress, width: int, notice: str = "") -> Panel:
    """The panel for a state of the run, at most 100 columns wide."""
    width = min(width, 100)
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(ratio=1)
    for label, value in _rows(progress, width):
        rows.add_row(label, value)
    parts: list[RenderableType] = [_bar(progress), rows]
    if notice:
        parts.append(Text(notice, style="bold yellow"))
    return Panel(Group(*parts), title=f"hone {progress.kind}", title_align="left", width=width, border_style="dim")


def _bar(progress: Progress) -> Table:
    left = progress.left
    line = Table.grid(padding=(0, 2), expand=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right")
    line.add_row(
        Text(f"{progress.done}/{progress.max_steps} steps", style="bold"),
        ProgressBar(total=progress.max_steps, completed=progress.done),
        f"{duration(progress.elapsed)} gone, {'?' if left is None else duration(left)} left",
    )
    return line


def _rows(progress: Progress, width: int) -> list[tuple[str, RenderableType]]:
    m = progress.metrics
    rows: list[tuple[str, RenderableType]] = []
    if progress.history:
        rows.append(_headline(progress, width))
    if (lr := m.get("lr")) is not None and progress.kind == "sft":
        rows.append(("lr", f"{lr:.2e}"))
    if (length := m.get("completion/length/mean")) is not None:
        cut = percent(m.get("completion/truncated") or 0.0)
        rows.append(("length", f"{length:.1f} tokens{in_turns(m)}, {cut} truncated"))
    if outcomes := _outcomes(m):
        rows.append(("outcomes", outcomes))
    rows += [("held out", f"{line}, at step {progress.eval_step}") for line in progress.evaluation()]
    if speed := _speed(progress.timings):
        rows.append(("speed", speed))
    now = progress.clock() - progress.doing_since
    if progress.doing and now > 2:
        rows.append(("now", Text(f"{progress.doing}, {now:.0f} s", style="cyan")))
    return rows


def _headline(progress: Progress, width: int) -> tuple[str, Text]:
    latest, m = progress.history[-1], progress.metrics
    line = sparkline(progress.history, max(8, min(40, width - 46)))
    if progress.kind == "sft":
        return "loss", Text.assemble((f"{latest:.4f}", "bold"), " nats/token  ", (line, "cyan"))
    std = f" std {m['reward/std']:.2f}" if m.get("reward/std") is not None else ""
    return "reward", Text.assemble((f"{latest:.3f}", "bold"), f"{std}  ", (line, "cyan"))


def _outcomes(metrics: dict[str, Any]) -> Text | None:
    shares = [(name, style, metrics.get(f"outcome/{name}") or 0.0) for name, style in OUTCOME_STYLES.items()]
    parts = [Text(f"{name.replace('_', ' ')} {percent(share)}", style=style) for name, style, share in shares if share]
    return Text("  ").join(parts) if parts else None


def _speed(timings: dict[str, Any]) -> str:
    parts = []
    if (speed := timings.get("tokens/s")) is not None:
        parts.append(f"{thousands(speed)} tokens/s")
    if (seconds := timings.get("time/step")) is not None:
        phases = {name.removeprefix("time/"): value for name, value in timings.items() if name.startswith("time/")}
        shown = [
            f"{name} {short_seconds(value)}"
            for name, value in phases.items()
            if name not in ("step", "total") and value > 0.02 * seconds
        ]
        parts.append(f"{short_seconds(seconds)}/step" + (f" ({', '.join(shown)})" if shown else ""))
    return ", ".join(parts)
