"""What is drawn of a run: each chart with its lines, as a description that `assets/charts.js` draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from hone.viewer.series import Series

OUTCOMES = ("correct", "wrong", "unparsable", "truncated", "grader_error", "grader_timeout")
"""Also the names of their colours in hone.css."""
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
"""Colours of the phases of a step, in the order in which they are stacked; others follow. In several processes the
orchestrator waits for the trainer and puts batches in its place: no run shows two of one colour.
"""
_SHARE = "share of the completions"


@dataclass(frozen=True)
class Line:
    """A metric in a chart. `color` is a name in hone.css. `low` and `high` are metrics that bound its interval.

    `points`: markers and no smoothing, for what is measured now and then. `steady`: what does not scatter.
    """

    metric: str
    label: str
    color: str = "s1"
    scale: float = 1.0
    low: str = ""
    high: str = ""
    points: bool = False
    steady: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart against steps, tokens or hours. `stack`: lines are areas on top of each other. `whole` names the metric
    that areas should add up to, whose rest is drawn as "other". `opens`: a click on a point opens the samples of its
    step.
    """

    id: str
    title: str
    unit: str
    lines: Sequence[Line]
    note: str = ""
    stack: bool = False
    whole: str = ""
    share: bool = False
    log: bool = False
    wide: bool = False
    opens: bool = True

    def metrics(self) -> Iterator[str]:
        """Give the names of all that it draws."""
        for line in self.lines:
            yield from filter(None, (line.metric, line.low, line.high))
        yield from filter(None, (self.whole,))


@dataclass
class _Charts:
    """The charts of which a run has a metric."""

    names: list[str]
    charts: list[Chart] = field(default_factory=list)

    def add(self, id: str, title: str, unit: str, *lines: Line, **more: Any) -> None:
        """Add a chart of those lines that there are; none without any."""
        there = [line for line in lines if line.metric in self.names]
        bounded = [line if line.low in self.names else replace(line, low="", high="") for line in there]
        if bounded:
            self.charts.append(Chart(id, title, unit, bounded, **more))


def environments(names: Sequence[str]) -> list[str]:
    """Return the tasks that a run was evaluated on: `t` for each `eval/t/reward/mean`."""
    held_out = [name for name in names if name.startswith("eval/") and name.endswith("/reward/mean")]
    found = [name.removeprefix("eval/").removesuffix("/reward/mean") for name in held_out]
    return [env for env in found if not any(f"{env}/".startswith(f"{other}/reward/") for other in found)]


def charts(series: Series, info: Mapping[str, Any]) -> list[Chart]:
    """Return the charts of a run, with this run.json, in the order of its page."""
    found = _Charts(series.names)
    if info["kind"] == "sft":
        losses = Line("loss", "training loss"), Line("val/loss", "validation loss", "s5", points=True)
        found.add("loss", "Loss", "nats per token", *losses, wide=True)
        found.add("examples", "Examples seen", "", Line("examples/total", "examples", "s6", steady=True))
    else:
        _add_rewards(found, info)
        _add_completions(found)
    found.add("entropy", "Entropy of the policy", "nats per token", Line("entropy", "entropy"))
    found.add("grad_norm", "Norm of the gradient, before clipping", "", Line("grad_norm", "gradient", "s4"))
    if info["kind"] != "sft":
        _add_policy(found)
    found.add("lr", "Learning rate", "", Line("lr", "learning rate", "s6", steady=True))
    _add_times(found)
    return [replace(chart, opens=chart.opens and info["kind"] != "sft") for chart in found.charts]


def _held_out(found: _Charts, metric: str, interval: str = "") -> list[Line]:
    """Return a line for each task that the run was evaluated on."""
    return [
        Line(f"eval/{env}/{metric}", f"held out: {env}", color, low=interval and f"eval/{env}/{interval}/low",
             high=interval and f"eval/{env}/{interval}/high", points=True)
        for env, color in _colored(environments(found.names), "s5")
    ]  # fmt: skip


def _add_rewards(found: _Charts, info: Mapping[str, Any]) -> None:
    note = "Mean of all completions of a step. Bars are 95 % intervals of held-out evaluations."
    rewards = Line("reward/mean", "training"), *_held_out(found, "reward/mean", "ci95")
    found.add("reward", "Reward", "", *rewards, wide=True, note=note)
    weights = info.get("reward_weights") or {}
    parts = [name[7:-5] for name in found.names if name.startswith("reward/") and name[7:].endswith("/mean")]
    weighted = {name: float(weights.get(name, 1.0)) for name in parts}
    lines = [
        Line(
            f"reward/{name}/mean",
            name if weighted[name] == 1 else f"{name} × {weighted[name]:g}",
            color,
            weighted[name],
        )
        for name, color in _colored([name for name in parts if weighted[name]])
    ]
    note = "Mean of each component, where it does not abstain, times its weight: together the reward."
    found.add("components", "What the reward is made of", "reward", *lines, stack=True, note=note)
    outcomes = [Line(f"outcome/{name}", name.replace("_", " "), name) for name in OUTCOMES]
    found.add("outcomes", "Outcomes", _SHARE, *outcomes, stack=True, share=True)
    correct = Line("outcome/correct", "training", "correct"), *_held_out(found, "correct", "correct/ci95")
    found.add("correct", "Correct", _SHARE, *correct, share=True)


def _add_completions(found: _Charts) -> None:
    lengths = Line("completion/length/mean", "training"), *_held_out(found, "completion/length/mean")
    found.add("length", "Length of completions", "tokens", *lengths)
    found.add(
        "truncated", "Truncated, repeated, identical", _SHARE,
        Line("completion/truncated", "cut at the limit", "truncated"), Line("completion/repeated", "repeated", "s4"),
        Line("completion/identical", "identical", "s6"), share=True,
        note="Repeated: the same tokens as an earlier completion of its prompt; identical: as one of another prompt.",
    )  # fmt: skip
    found.add("turns", "Turns", "turns per completion", Line("turns/mean", "turns"))
    note = "Groups in which all rewards are equal: they teach nothing."
    no_signal = Line("frac_reward_zero_std", "no signal", "s4")
    found.add("zero_std", "Groups without signal", "share of the groups", no_signal, share=True, note=note)
    pool = [Line(f"pool/{name}", name, color) for name, color in _colored(["active", "retired", "parked"])]
    found.add("pool", "Prompts in the pool", "prompts", *pool, stack=True)


def _add_policy(found: _Charts) -> None:
    found.add("kl", "KL to the initial policy", "nats per token", Line("kl", "KL", "s3"))
    found.add(
        "gap", "Gap between sampler and trainer", "nats", Line("logprob_gap/mean", "mean"),
        Line("logprob_gap/max", "largest", "s4"), Line("canary/gap/max", "canary", "s6", points=True), log=True,
        note="Difference of the log-probabilities of trainer and sampler for the sampled tokens, zeros left out (the "
        "axis has none). Canary: the largest on one fixed text, which both score after each publication of weights.",
    )  # fmt: skip
    clipped = Line("clipped", "clipped", "s4")
    found.add("clipped", "Tokens with a clipped ratio", "share of the tokens", clipped, share=True)
    if "staleness/max" in found.names:
        stale = Line("staleness/mean", "mean"), Line("staleness/max", "largest", "s4")
        found.add("staleness", "Staleness", "versions", *stale)
    found.add("loss", "Loss", "", Line("loss", "loss", "s6"))


def _add_times(found: _Charts) -> None:
    there = [name[5:] for name in found.names if name.startswith("time/")]
    phases = [name for name in _PHASES if name in there]
    phases += [name for name in there if name not in (*_PHASES, "step", "total")]
    if "wait" in phases:  # of several processes: what trainer and server did meanwhile is no part of the step
        phases = [name for name in phases if name not in ("train", "publish", "update")]
    colors = dict(_colored([name for name in phases if name not in _PHASES])) | _PHASES
    lines = [Line(f"time/{name}", name, colors[name]) for name in phases]
    note = "Other: what belongs to no phase."
    found.add("timings", "Seconds of a step", "s", *lines, stack=True, whole="time/step", note=note, opens=False)
    found.add("speed", "Speed", "tokens per second", Line("tokens/s", "tokens/s", "s2"), opens=False)
    idle = [name for name in found.names if name.startswith("idle/")]
    found.add("idle", "Idle", "s", *(Line(name, name[5:], color) for name, color in _colored(idle)), opens=False)


def _colored(names: Sequence[str], first: str = "s1") -> list[tuple[str, str]]:
    """Return each name with a colour, from `first` on."""
    begin = _PALETTE.index(first)
    return [(name, _PALETTE[(begin + index) % len(_PALETTE)]) for index, name in enumerate(names)]


def sparkline(values: Sequence[float], width: int = 112, height: int = 22) -> Markup:
    """Draw values, of which there is at least one, as a small line; from 0 to 1 if they fit there, else min to max.

    Longer ones than `width / 2` are averaged over stretches.
    """
    count = min(len(values), width // 2)
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    scale = (height - 4) / (high - low) if high > low else 0.0
    xs = [1 + (width - 4) * index / max(1, count - 1) for index in range(count)]
    points = " ".join(f"{x:.1f},{height - 2 - (mean - low) * scale:.1f}" for x, mean in zip(xs, means, strict=True))
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="from {} to {}">'
        '<polyline points="{}" fill="none" stroke="var(--accent)" stroke-width="1.5"/></svg>'
    ).format(width, height, f"{values[0]:.3g}", f"{values[-1]:.3g}", points)
