"""The curve of a run card as inline SVG: training reward, or loss, with held-out evaluations.

It is drawn without a library: to import matplotlib would take a second at the end of each run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from hone.extensions.viewer.series import extremes

MOST = 600
"""Most points of a line. Longer lines show each part's extremes, so no spike is lost."""
WIDTHS = {"wide": 720, "narrow": 360}
"""Widths in pixels for pages and for phones; hone.css shows one of the two."""
_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 46, 14, 12, 30, 270
Lines = Sequence[Mapping[str, Any]]


def curve(kind: str, lines: Lines, env: str | None) -> Markup:
    """Draw the curve from the lines of metrics.jsonl, once for each width. Without numbers, return empty Markup."""
    name, held = ("loss", "val/loss") if kind == "sft" else ("reward/mean", f"eval/{env}/reward/mean")
    known = [line for line in lines if line.get(name) is not None]
    steps, values = [line["step"] for line in known], np.array([line[name] for line in known], dtype=np.float64)
    measured = [line for line in lines if line.get(held) is not None]
    if not known and not measured:
        return Markup("")
    ends = [f"eval/{env}/ci95/{end}" for end in ("low", "high")]
    shown = extremes(np.array([line[held] for line in measured], dtype=np.float64), MOST)
    points = [(measured[i]["step"], measured[i][held], *map(measured[i].get, ends)) for i in shown]
    half = max(5, len(values) // 15) // 2
    sums, at = np.concatenate([[0.0], np.cumsum(values)]), np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    smooth = (sums[high] - sums[low]) / (high - low)
    words = "loss (nats per token) by step" if kind == "sft" else "mean reward by step"
    legend = f'{words}: <span style="color:var(--s1)">━</span> training, smoothed'
    if points:
        what = "validation" if kind == "sft" else "held out, 95 % interval"
        legend += f' <span style="color:var(--s5)">●</span> {what}'
    raw, line = ([(steps[i], float(one[i])) for i in extremes(one, MOST)] for one in (values, smooth))
    svgs = [f'<div class="{name}">{_svg(width, raw, line, points)}</div>' for name, width in WIDTHS.items()]
    return Markup(f'<figure class="drawn">{"".join(svgs)}<figcaption class="sub">{legend}</figcaption></figure>')


def _svg(width: int, raw: Sequence[Any], smooth: Sequence[Any], points: Sequence[Any]) -> str:
    """Draw two lines of (step, value), and points of (step, value, low, high); low and high may be None."""
    xs = [point[0] for point in (*raw, *points)]
    ys = [y for _, *some in (*raw, *points) for y in some if y is not None]
    low, high = min(0.0, *ys), max(ys)
    high = max(high, 1.0) if 0.2 < high <= 1.02 else high + (0.06 * (high - low) or 1.0)
    first, last = min(xs), max(max(xs), min(xs) + 1)
    right, bottom = width - _RIGHT, _HEIGHT - _BOTTOM

    def across(x: float) -> float:
        return _LEFT + (x - first) / (last - first) * (right - _LEFT)

    def up(y: float) -> float:
        return bottom - (y - low) / (high - low) * (bottom - _TOP)

    parts = [
        f'<svg class="lines" viewBox="0 0 {width} {_HEIGHT}" role="img" aria-label="the curve of the run" '
        'font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
    ]
    for y in np.linspace(low, high, 3):
        parts.append(f'<path d="M{_LEFT} {up(y):.1f}H{right}" stroke="currentColor" stroke-opacity=".14"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{up(y) + 4:.1f}" text-anchor="end" opacity=".75">{y:.3g}</text>')
    for x in np.linspace(first, last, 3):
        parts.append(f'<text x="{across(x):.1f}" y="{bottom + 16}" text-anchor="middle" opacity=".75">{x:.6g}</text>')
    for line, style in ((raw, 'stroke-opacity=".35"'), (smooth, 'stroke-width="2"')):
        at = "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in line) or "0 0"
        parts.append(f'<path d="M{at}h0" fill="none" style="stroke:var(--s1)" {style} stroke-linecap="round"/>')
    for x, y, *ends in points:
        if None not in ends:
            parts.append(f'<path d="M{across(x):.1f} {up(ends[0]):.1f}V{up(ends[1]):.1f}" style="stroke:var(--s5)"/>')
        parts.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3.2" style="fill:var(--s5)"/>')
    return "".join([*parts, "</svg>"])
