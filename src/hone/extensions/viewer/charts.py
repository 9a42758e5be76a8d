"""Charts of a run and their lines, as data for `assets/charts.js`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from hone.runs.metrics import unit

OUTCOMES = ("correct", "wrong", "unparsable", "truncated", "grader_error", "grader_timeout")
"""Outcomes of completions. hone.css has a colour for each name."""
_PALETTE = ("s1", "s2", "s3", "s4", "s5", "s6")
_PHASES = {
    "data": "s5",
    "sample": "s1",
    "grade": "s4",
    "train": "s2",
    "wait": "s2",
    "publish": "s3",
    "put": "s3",
    "evaluate": "s9",
    "validate": "s8",
    "checkpoint": "s7",
    "export": "s10",
    "record": "s6",
}
"""Colours of the phases of a step, in stack order; other phases follow. No run has two phases of one colour."""


@dataclass(frozen=True)
class Line:
    """A metric in a chart. `*` matches any part of a name. Each match is a line; `{}` in its label is the matched part.

    `color` is a name in hone.css. `low` and `high` are metrics with the ends of the interval. `points`: draw markers,
    without smoothing. `steady`: draw a line without scatter. `weighted`: multiply by the component's weight in the
    reward.
    """

    metric: str
    label: str
    color: str = "s1"
    scale: float = 1.0
    low: str = ""
    high: str = ""
    points: bool = False
    steady: bool = False
    weighted: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart over steps, tokens or hours. `unit` is by default the unit of the first metric.

    `stack`: draw lines as stacked areas; the metric `whole` minus their sum is drawn as "other". `opens`: a click on a
    point opens the step's samples. `kinds`: kinds of runs that have this chart; `needs`: a metric that they must have.
    """

    id: str
    title: str
    lines: Sequence[Line]
    note: str = ""
    unit: str | None = None
    stack: bool = False
    whole: str = ""
    share: bool = False
    log: bool = False
    wide: bool = False
    opens: bool = True
    kinds: str = "rl"
    needs: str = ""

    def metrics(self) -> Iterator[str]:
        for line in self.lines:
            yield from filter(None, (line.metric, line.low, line.high))
        yield from filter(None, (self.whole,))


def _held_out(metric: str, interval: str = "") -> Line:
    low, high = (f"eval/*/{interval}/{end}" if interval else "" for end in ("low", "high"))
    return Line(f"eval/*/{metric}", "held out: {}", "s5", low=low, high=high, points=True)


CHARTS = (
    Chart("loss", "Loss", (Line("loss", "training loss"), Line("val/loss", "validation loss", "s5", points=True)),
          unit="nats per token", wide=True, kinds="sft"),
    Chart("examples", "Examples seen", (Line("examples/total", "examples", "s6", steady=True),), kinds="sft"),
    Chart("reward", "Reward", (Line("reward/mean", "training"), _held_out("reward/mean", "ci95")), unit="", wide=True,
          note="Mean of all completions of a step. Bars are 95 % intervals of held-out evaluations."),
    Chart("components", "What the reward is made of", (Line("reward/*/mean", "{}", weighted=True),), stack=True,
          note="Mean of each component, where it does not abstain, times its weight: together the reward."),
    Chart("outcomes", "Outcomes", [Line(f"outcome/{name}", name.replace("_", " "), name) for name in OUTCOMES],
          stack=True),
    Chart("correct", "Correct", (Line("outcome/correct", "training", "correct"), _held_out("correct", "correct/ci95"))),
    Chart("length", "Length of completions",
          (Line("completion/length/mean", "training"), _held_out("completion/length/mean"))),
    Chart("truncated", "Truncated, repeated, identical",
          (Line("completion/truncated", "cut at the limit", "truncated"),
           Line("completion/repeated", "repeated", "s4"), Line("completion/identical", "identical", "s6")),
          note="Repeated: the same tokens as an earlier completion of its prompt; identical: of another prompt."),
    Chart("turns", "Turns", (Line("turns/mean", "turns"),)),
    Chart("zero_std", "Groups without signal", (Line("frac_reward_zero_std", "no signal", "s4"),),
          note="Groups in which all rewards are equal: they teach nothing."),
    Chart("pool", "Prompts in the pool", (Line("pool/*", "{}"),), stack=True),
    Chart("entropy", "Entropy of the policy", (Line("entropy", "entropy"),), kinds="rl sft"),
    Chart("grad_norm", "Norm of the gradient, before clipping", (Line("grad_norm", "gradient", "s4"),), kinds="rl sft"),
    Chart("kl", "KL to the initial policy", (Line("kl", "KL", "s3"),)),
    Chart("gap", "Gap between sampler and trainer",
          (Line("logprob_gap/mean", "mean"), Line("logprob_gap/max", "largest", "s4"),
           Line("canary/gap/max", "canary", "s6", points=True)), log=True,
          note="Difference of the log-probabilities of trainer and sampler for the sampled tokens, zeros left out (the "
          "axis has none). Canary: the largest on one fixed text, scored by both after each publication of weights."),
    Chart("clipped", "Tokens with a clipped ratio", (Line("clipped", "clipped", "s4"),)),
    Chart("staleness", "Staleness", (Line("staleness/mean", "mean"), Line("staleness/max", "largest", "s4")),
          needs="staleness/max"),
    Chart("policy_loss", "Loss", (Line("loss", "loss", "s6"),)),
    Chart("lr", "Learning rate", (Line("lr", "learning rate", "s6", steady=True),), kinds="rl sft"),
    Chart("timings", "Seconds of a step", (Line("time/*", "{}"),), stack=True, whole="time/step", opens=False,
          note="Other: what belongs to no phase.", kinds="rl sft"),
    Chart("speed", "Speed", (Line("tokens/s", "tokens/s", "s2"),), opens=False, kinds="rl sft"),
    Chart("idle", "Idle", (Line("idle/*", "{}"),), opens=False, kinds="rl sft"),
)  # fmt: skip


def charts(names: Sequence[str], info: Mapping[str, Any]) -> list[Chart]:
    """Return the charts for a run with the metrics `names` and the run.json `info`."""
    found = []
    for chart in CHARTS:
        lines = [made for line in chart.lines for made in _lines(line, names, info.get("reward_weights") or {})]
        if chart.id == "timings":
            lines = _phases(lines)
        if lines and info["kind"] in chart.kinds.split() and chart.needs in ("", *names):
            measure = unit(lines[0].metric) if chart.unit is None else chart.unit
            opens, share = chart.opens and info["kind"] != "sft", measure.startswith("share")
            found.append(replace(chart, lines=lines, unit=measure, share=share, opens=opens))
    return found


def _lines(line: Line, names: Sequence[str], weights: Mapping[str, float]) -> Iterator[Line]:
    pattern = re.escape(line.metric).replace(r"\*", "([^/]+)")
    matches = [match for name in names if (match := re.fullmatch(pattern, name))]
    for number, match in enumerate(matches):
        part = match[1] if match.groups() else ""
        weight = float(weights.get(part, 1.0)) if line.weighted else 1.0
        label = line.label.format(part) + ("" if weight == 1 else f" × {weight:g}")
        color = _PALETTE[(_PALETTE.index(line.color) + number) % len(_PALETTE)] if part else line.color
        low, high = (bound if (bound := end.replace("*", part)) in names else "" for end in (line.low, line.high))
        if weight:
            yield replace(line, metric=match[0], label=label, color=color, scale=weight, low=low, high=high)


def _phases(lines: list[Line]) -> list[Line]:
    phases = {line.label: line for line in lines if line.label not in ("step", "total")}
    if "wait" in phases:  # several processes: times of trainer and server are not part of the step
        phases = {name: line for name, line in phases.items() if name not in ("train", "publish", "update")}
    order = [*filter(phases.get, _PHASES), *(name for name in phases if name not in _PHASES)]
    return [replace(phases[name], color=_PHASES.get(name, phases[name].color)) for name in order]


def sparkline(values: Sequence[float]) -> Markup:
    """Draw values as a small line with the area below. Neighbours in long series are averaged."""
    width, height = 128, 28
    count = min(len(values), width // 2)
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(0.0, *means), max(0.0, *means)
    scale = (height - 4) / (high - low) if high > low else 0.0
    xs = [1 + (width - 4) * index / max(1, count - 1) for index in range(count)]
    points = " L".join(f"{x:.1f},{height - 2 - (mean - low) * scale:.1f}" for x, mean in zip(xs, means, strict=True))
    return Markup(
        '<svg class="spark" viewBox="0 0 {0} {1}" preserveAspectRatio="none" role="img" aria-label="from {2} to {3}">'
        '<path d="M{4} V{1} H1 Z" fill="var(--accent)" opacity="0.14"/>'
        '<path d="M{4}" fill="none" stroke="var(--accent)" stroke-width="1.5"/></svg>'
    ).format(width, height, f"{values[0]:.3g}", f"{values[-1]:.3g}", points)
