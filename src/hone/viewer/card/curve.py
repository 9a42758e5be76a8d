"""The curve of a run card: training reward, or loss, with what was measured on held-out examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from hone.pages.lines import Line, Points, Values, chart

Lines = Sequence[Mapping[str, Any]]
NARROW = 360
"""Pixels that a telephone has for a chart."""


def drawn(kind: str, lines: Lines, env: str | None) -> Markup:
    """The chart of metrics.jsonl's lines; empty for a run without any. `env` is the task that was evaluated on."""
    if kind == "sft":
        parts = _training(lines, "loss", "training loss")
        held = _column(lines, "val/loss")
        steps, values = _with(lines, held)
        unknown: list[float | None] = [None] * len(steps)
        points = [Points(steps, values, unknown, unknown, "red", "validation loss")] if steps else []
        return _two_widths(parts, points, "loss (nats per token)", y_from_zero=True)
    parts, points = _training(lines, "reward/mean", "training reward"), []
    if env is not None:
        name = f"eval/{env}"
        held = _column(lines, f"{name}/reward/mean")
        ends = [_column(lines, f"{name}/ci95/{end}") for end in ("low", "high")]
        low, high = ([v for v, h in zip(end, held, strict=True) if h is not None] for end in ends)
        steps, values = _with(lines, held)
        points = [Points(steps, values, low, high, "red", "held out, 95 % interval")]
    return _two_widths(parts, points, "mean reward")


def _two_widths(lines: Sequence[Line], points: Sequence[Points], label: str, y_from_zero: bool = False) -> Markup:
    """The chart as wide as a page, and as a telephone with letters that can be read: hone.css shows what fits."""
    wide, narrow = (chart(lines, points, "step", label, width=w, y_from_zero=y_from_zero) for w in (720, NARROW))
    if not wide:
        return Markup("")
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow)


def _training(lines: Lines, name: str, label: str) -> list[Line]:
    values = _column(lines, name)
    steps = [line["step"] for line in lines]
    if _count(values) < 2:
        return []
    smooth = smoothed(values, max(5, _count(values) // 15))
    return [Line(steps, values, "blue", "", 1.0, 0.35), Line(steps, smooth, "blue", f"{label}, smoothed")]


def smoothed(values: Values, window: int) -> list[float | None]:
    """Centred moving mean over what is known; None where the value itself is not."""
    sums, counts = [0.0], [0]
    for value in values:
        sums.append(sums[-1] + (value or 0.0))
        counts.append(counts[-1] + (value is not None))
    found: list[float | None] = []
    for i, value in enumerate(values):
        low, high = max(i - window // 2, 0), min(i + window // 2 + 1, len(values))
        found.append(None if value is None else (sums[high] - sums[low]) / (counts[high] - counts[low]))
    return found


def _column(lines: Lines, name: str) -> list[float | None]:
    return [float(v) if isinstance(v := line.get(name), int | float) else None for line in lines]


def _with(lines: Lines, values: Values) -> tuple[list[float], list[float]]:
    """Steps and values where there is one."""
    known = [(line["step"], value) for line, value in zip(lines, values, strict=True) if value is not None]
    return [step for step, _ in known], [value for _, value in known]


def _count(values: Values) -> int:
    return sum(value is not None for value in values)
