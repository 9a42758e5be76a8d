"""The page that `hone regrade --html` writes: both curves, what the recorded one is made of, texts side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from markupsafe import Markup

from hone.commands.regrade_report import Result, checks, disagreements
from hone.pages import COLORS, figure, fill, page, svg
from hone.reproduce.attribution import Split, split
from hone.runs.curve import smoothed
from hone.runs.files import write_file

PARTS = {"skill": "blue", "format": "green", "truncation": "brown", "parser": "red"}
"""Parts of the split and their colours, from the bottom up."""

_BODY = """
<p class="sub">{{ result.run.path }} ({{ result.run.info["id"] }}): recorded by {{ result.recorded_by }}, graded
again by {{ result.graded_by }}</p>
<div class="box {{ 'note' if result.verdict.cause == 'none' else 'warn' }}">{{ result.verdict.sentence }}</div>
<figure>{{ curves }}</figure>
<h2>What the recorded reward is made of</h2>
<p class="sub">skill: what completions that were not cut off are worth to the other grader. truncation: what the others
change of that. format: the other components. parser: recorded minus what the other grader sees. Areas below 0 take away
from the sum, which is the recorded mean.</p>
<figure>{{ areas }}</figure>
<h2>By steps</h2>
<table>
<tr><th>steps</th>{% for name in heads %}<th class="n">{{ name }}</th>{% endfor %}</tr>
{% for one in result.windows %}
<tr{% if one.name in ends %} class="mark"{% endif %}><td>{{ one.name }}</td>
<td class="n">{{ one.recorded|num }}</td><td class="n">{{ one.regraded|num }}</td>
<td class="n">{{ one.right_both|percent }}</td><td class="n">{{ one.right_old|percent }}</td>
<td class="n">{{ one.right_new|percent }}</td><td class="n">{{ one.truncated|percent }}</td>
<td class="n">{{ one.length|num(1) }}</td>
{% for part in parts %}<td class="n">{{ one.split[part]|num }}</td>{% endfor %}</tr>
{% endfor %}
</table>
<p class="sub">{% for text in checks %}{{ text }}<br>{% endfor %}</p>
{% if pairs %}<h2>Where the graders disagree</h2>{% endif %}
{% for pair in pairs %}
<p>Step {{ pair.recorded.step }}, sample {{ pair.recorded.reply.sample_id }}, {{ pair.recorded.length }} tokens;
expected {{ pair.recorded.example.answer|visible(limit) }}</p>
<pre>{{ pair.recorded.text|visible(limit) }}</pre>
<div class="columns">
<div class="box">recorded: <b>{{ pair.recorded.score.outcome }}</b> ({{ pair.recorded.score.reward|num }})<br>
{{ pair.recorded.score.detail|visible(limit) }}</div>
<div class="box">now: <b>{{ pair.score.outcome }}</b> ({{ pair.score.reward|num }})<br>
{{ pair.score.detail|visible(limit) }}</div>
</div>
{% endfor %}
"""


def write_page(path: Path, result: Result, limit_text: int) -> None:
    """Writes the page; `limit_text` characters of a completion are shown."""
    heads = ("recorded", "regraded", "right: both", "only old", "only new", "truncated", "tokens", *PARTS)
    body = fill(
        _BODY,
        result=result,
        curves=_curves(result),
        areas=_areas(result),
        heads=heads,
        parts=tuple(PARTS),
        ends=(result.verdict.before.name, result.verdict.after.name),
        checks=checks(result),
        pairs=[] if result.same_grader else disagreements(result),
        limit=limit_text,
    )
    write_file(path, page(f"hone regrade: {result.run.path.name}", body))


def _by_step(result: Result) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps, and of each the mean rewards and the split, over completions that both graders could grade."""
    columns = result.found.columns
    both = columns.both
    steps = np.unique(columns.step[both])
    found: dict[str, list[float]] = {name: [] for name in ("recorded", "regraded", *PARTS)}
    for step in steps:
        here = both & (columns.step == step)
        recorded, regraded = columns.recorded[here], columns.regraded[here]
        parts: Split = split(recorded, columns.main[here], columns.extra[here], columns.truncated[here])
        values = {"recorded": recorded.mean(), "regraded": regraded.mean()} | parts.record()
        for name, value in values.items():
            found[name].append(float(value))
    return steps, {name: np.array(values) for name, values in found.items()}


def _curves(result: Result) -> Markup:
    steps, by_step = _by_step(result)
    wide = max(1, len(steps) // 20)
    with figure() as drawn:
        axes = drawn.subplots()
        for name, color in (("recorded", "red"), ("regraded", "blue")):
            axes.plot(steps, by_step[name], color=COLORS[color], alpha=0.25, linewidth=0.9)
            axes.plot(steps, smoothed(by_step[name], wide), color=COLORS[color], linewidth=2.0, label=name)
        for one in (result.verdict.before, result.verdict.after):
            axes.axvspan(one.first, one.last, color=COLORS["grey"], alpha=0.12, linewidth=0)
        axes.set_xlabel("step")
        axes.set_ylabel("mean reward")
        axes.grid(True, linewidth=0.8)
        axes.legend(loc="best", fontsize=9)
        return svg(drawn)


def _areas(result: Result) -> Markup:
    """Parts above 0 stacked upwards, those below it downwards."""
    steps, by_step = _by_step(result)
    wide = max(1, len(steps) // 20)
    up, down = np.zeros(len(steps)), np.zeros(len(steps))
    with figure() as drawn:
        axes = drawn.subplots()
        for name, color in PARTS.items():
            values = smoothed(by_step[name], wide)
            above, below = np.maximum(values, 0), np.minimum(values, 0)
            axes.fill_between(steps, up, up + above, color=COLORS[color], alpha=0.6, linewidth=0, label=name)
            axes.fill_between(steps, down, down + below, color=COLORS[color], alpha=0.6, linewidth=0)
            up, down = up + above, down + below
        axes.plot(steps, smoothed(by_step["recorded"], wide), color="#1d2430", linewidth=1.5, label="recorded")
        axes.axhline(0, color=COLORS["grey"], linewidth=0.8)
        axes.set_xlabel("step")
        axes.set_ylabel("mean reward")
        axes.legend(loc="best", fontsize=9, ncols=5)
        return svg(drawn)
