"""Small charts as inline SVG: lines, points with intervals. No library, no script, the same text each time.

A run draws one at its end, and `hone view` with each card: matplotlib takes a second to be imported and to draw, this
takes milliseconds.

    svg = chart([Line(steps, rewards, "blue")], [Points(at, means, lows, highs, "red")], "step", "reward")

Colours are `COLORS`, or what the page's style names --s1 to --s6; text and axes take the page's
(`currentColor`). So light and dark both work.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from markupsafe import Markup, escape

Values = Sequence[float | None]
"""Numbers; None, and what is not finite, is a gap."""
MOST = 600
"""Points of a line, or dots, that are drawn: of more, the lowest and the highest of each stretch."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 38
_ROW = 16
"""Pixels from one row of the legend to the next."""
COLORS = {
    "blue": "#2563c9",
    "green": "#12876a",
    "purple": "#8b45c4",
    "brown": "#b3591d",
    "red": "#d9480f",
    "grey": "#8a94a6",
}
_COLORS = {name: f"var(--s{i}, {color})" for i, (name, color) in enumerate(COLORS.items(), 1)}


@dataclass(frozen=True)
class Line:
    """A polyline. A `label` puts it into the legend."""

    x: Sequence[float]
    y: Values
    color: str = "blue"
    label: str = ""
    width: float = 2.0
    opacity: float = 1.0


@dataclass(frozen=True)
class Points:
    """Dots, each with its interval from `low` to `high` where that is known."""

    x: Sequence[float]
    y: Values
    low: Values
    high: Values
    color: str = "red"
    label: str = ""


Drawn = TypeVar("Drawn", Line, Points)


@dataclass(frozen=True)
class Scale:
    """From values to pixels: `low` is at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """About `count` round numbers within."""
        raw = (self.high - self.low) / count
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def chart(
    lines: Sequence[Line],
    points: Sequence[Points] = (),
    x_label: str = "",
    y_label: str = "",
    *,
    width: int = 720,
    height: int = 280,
    y_from_zero: bool = False,
    title: str = "",
) -> Markup:
    """The chart; empty Markup if nothing in it is a number. A y axis of values in [0, 1] shows all of that.

    `title` is read to those who can't see it.
    """
    lines, points = [_thinned(line) for line in lines], [_thinned(one) for one in points]
    xs = [x for one in (*lines, *points) for x, y in zip(one.x, one.y, strict=True) if _known([y])]
    ys = [y for one in lines for y in _known(one.y)]
    ys += [y for one in points for column in (one.y, one.low, one.high) for y in _known(column)]
    if not xs:
        return Markup("")
    across = _scale(xs, _LEFT, width - _RIGHT)
    low, high = _range(ys, y_from_zero)
    legend, rows = _legend([one for one in (*lines, *points) if one.label], width)
    up = Scale(low, high, height - _BOTTOM, _TOP + rows)
    parts = [*_axes(across, up, width, height, x_label, y_label)]
    parts += [part for line in lines for part in _polylines(line, across, up)]
    parts += [part for one in points for part in _dots(one, across, up)]
    parts += legend
    return Markup(
        f'<svg class="lines" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title or y_label)}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">' + "".join(parts) + "</svg>"
    )


def _known(values: Values) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _scale(xs: Sequence[float], start: float, end: float) -> Scale:
    low, high = min(xs), max(xs)
    return Scale(low, high, start, end) if high > low else Scale(low - 0.5, high + 0.5, start, end)


def _range(ys: Sequence[float], from_zero: bool) -> tuple[float, float]:
    low, high = min(ys), max(ys)
    if low >= -0.02 and high <= 1.02 and high > 0.2:
        return min(0.0, low), max(1.0, high)
    low = min(0.0, low) if from_zero else low
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return low - (0.0 if from_zero and low == 0 else room), high + room


def _axes(across: Scale, up: Scale, width: int, height: int, x_label: str, y_label: str) -> Iterable[str]:
    right, bottom = width - _RIGHT, height - _BOTTOM
    for value in up.ticks(4):
        y = up(value)
        yield f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="currentColor" stroke-opacity=".14"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" opacity=".75">{value:.4g}</text>'
    for value in across.ticks(6):
        yield f'<text x="{across(value):.1f}" y="{bottom + 16}" text-anchor="middle" opacity=".75">{value:.6g}</text>'
    yield f'<path d="M{_LEFT} {up.end:g}V{bottom}H{right}" fill="none" stroke="currentColor" stroke-opacity=".45"/>'
    middle = (_LEFT + right) / 2
    yield f'<text x="{middle:.0f}" y="{height - 5}" text-anchor="middle" opacity=".75">{escape(x_label)}</text>'
    at = (up.end + bottom) / 2
    yield (
        f'<text x="11" y="{at:.0f}" text-anchor="middle" opacity=".75" transform="rotate(-90 11 {at:.0f})">'
        f"{escape(y_label)}</text>"
    )


def _polylines(line: Line, across: Scale, up: Scale) -> Iterable[str]:
    """One path for each stretch without a gap; a stretch of one point is a dot."""
    stroke = f'style="stroke:{_COLORS[line.color]}" stroke-width="{line.width:g}" stroke-opacity="{line.opacity:g}"'
    for stretch in _stretches(line):
        at = [f"{across(x):.1f} {up(y):.1f}" for x, y in stretch]
        if len(at) == 1:
            x, y = at[0].split()
            yield f'<circle cx="{x}" cy="{y}" r="{line.width:g}" style="fill:{_COLORS[line.color]}"/>'
        else:
            yield f'<path d="M{"L".join(at)}" fill="none" {stroke} stroke-linejoin="round"/>'


def _stretches(line: Line) -> Iterable[list[tuple[float, float]]]:
    stretch: list[tuple[float, float]] = []
    for x, y in zip(line.x, line.y, strict=True):
        if y is not None and math.isfinite(y):
            stretch.append((x, y))
        elif stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _thinned(one: Drawn) -> Drawn:
    """At most `MOST` of its points: the first, the last, and the lowest and highest of each stretch: no spike is lost.
    Where a line has a gap between two that are kept, it keeps one.
    """
    known = [i for i, y in enumerate(one.y) if y is not None and math.isfinite(y)]
    if len(known) <= MOST:
        return one
    buckets, values = MOST // 2 - 1, one.y
    kept = {known[0], known[-1]}
    for i in range(buckets):
        part = known[i * len(known) // buckets : (i + 1) * len(known) // buckets]
        kept |= {min(part, key=lambda at: values[at] or 0.0), max(part, key=lambda at: values[at] or 0.0)}
    chosen = sorted(kept)
    if isinstance(one, Line):
        gaps = sorted(set(range(len(values))) - set(known))
        after = [bisect(gaps, at) for at in chosen]
        chosen += [gaps[low] for low, high in pairwise(after) if high > low]
        chosen.sort()
    columns = ("x", "y") if isinstance(one, Line) else ("x", "y", "low", "high")
    return replace(one, **{name: [getattr(one, name)[at] for at in chosen] for name in columns})


def _dots(one: Points, across: Scale, up: Scale) -> Iterable[str]:
    color = _COLORS[one.color]
    for x, y, low, high in zip(one.x, one.y, one.low, one.high, strict=True):
        if y is None or not math.isfinite(y):
            continue
        at = across(x)
        ends = [up(end) for end in _known([low, high])]
        if len(ends) == 2:
            yield f'<path d="M{at:.1f} {ends[0]:.1f}V{ends[1]:.1f}" style="stroke:{color}" stroke-width="1.5"/>'
            for end in ends:
                yield f'<path d="M{at - 3:.1f} {end:.1f}h6" style="stroke:{color}" stroke-width="1.5"/>'
        yield f'<circle cx="{at:.1f}" cy="{up(y):.1f}" r="3.2" style="fill:{color}"/>'


def _legend(named: Sequence[Line | Points], width: int) -> tuple[list[str], int]:
    """At the top right, from the right, in as many rows as it takes; and the pixels that rows after the first take."""
    found, right, row = [], width - _RIGHT, 0
    for one in reversed(named):
        room = 6.6 * len(one.label) + 22
        if right < width - _RIGHT and right - room < _LEFT:
            right, row = width - _RIGHT, row + _ROW
        found.append(
            f'<rect x="{right - room:.0f}" y="{_TOP + row - 9}" width="12" height="4" '
            f'style="fill:{_COLORS[one.color]}"/>'
            f'<text x="{right - room + 17:.0f}" y="{_TOP + row - 3}" opacity=".85">{escape(one.label)}</text>'
        )
        right -= room + 10
    return found, row
