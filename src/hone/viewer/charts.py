"""What is drawn of a run: each chart with its lines, as a description that `assets/charts.js` draws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
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
    `dots`: markers without a line between them, for what is 0 at most steps.
    """

    metric: str
    label: str
    color: str = "s1"
    scale: float = 1.0
    low: str = ""
    high: str = ""
    points: bool = False
    steady: bool = False
    dots: bool = False

    def metrics(self) -> Iterator[str]:
        yield from filter(None, (self.metric, self.low, self.high))


@dataclass(frozen=True)
class Chart:
    """A chart against steps, tokens or hours; with `against` a metric, of its points against that one.

    `stack`: lines are areas on top of each other. `whole` names the metric that areas should add up to, whose rest is
    drawn as "other". `completions`: of single completions, which are read when the chart comes into sight. `opens`: a
    click on a point opens the samples of its step.
    """

    id: str
    title: str
    unit: str
    lines: Sequence[Line]
    note: str = ""
    stack: bool = False
    whole: str = ""
    against: str = ""
    against_label: str = ""
    completions: bool = False
    share: bool = False
    log: bool = False
    wide: bool = False
    opens: bool = True

    def metrics(self) -> Iterator[str]:
        """The names of all that it draws."""
        for line in self.lines:
            yield from line.metrics()
        yield from filter(None, (self.whole, self.against))

    def spec(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


@dataclass
class _Found:
    """Picks lines and charts by what a run has."""

    names: set[str]
    charts: list[Chart] = field(default_factory=list)

    def add(self, id: str, title: str, unit: str, lines: Sequence[Line], **more: Any) -> None:
        """A chart of those lines that there are; none without any."""
        there = [line for line in lines if line.metric in self.names]
        bounded = [line if line.low in self.names and line.high in self.names else _bare(line) for line in there]
        if bounded:
            self.charts.append(Chart(id, title, unit, bounded, **more))


def _bare(line: Line) -> Line:
    return replace(line, low="", high="")


def environments(names: Sequence[str]) -> list[str]:
    """The tasks that a run was evaluated on: `t` for each `eval/t/reward/mean`."""
    found = [name.removeprefix("eval/").removesuffix("/reward/mean") for name in names if _is_held_out(name)]
    return [env for env in found if not any(f"{env}/".startswith(f"{other}/reward/") for other in found)]


def _is_held_out(name: str) -> bool:
    return name.startswith("eval/") and name.endswith("/reward/mean")


def components(names: Sequence[str]) -> list[str]:
    """The components of the training reward: `c` for each `reward/c/mean`."""
    return [name[7:-5] for name in names if name.startswith("reward/") and name.endswith("/mean") and len(name) > 12]


def charts(series: Series, info: Mapping[str, Any]) -> list[Chart]:
    """The charts of a run, with this run.json, in the order of its page."""
    names = series.names
    found = _Found(set(names))
    if info["kind"] == "sft":
        _of_sft(found)
    else:
        _of_rl(found, names, info)
    found.add("entropy", "Entropy of the policy", "nats per token", [Line("entropy", "entropy")])
    found.add("grad_norm", "Norm of the gradient, before clipping", "", [Line("grad_norm", "gradient", "s4")])
    if info["kind"] != "sft":
        _of_policy(found)
    found.add("lr", "Learning rate", "", [Line("lr", "learning rate", "s6", steady=True)])
    _of_time(found, names)
    return [replace(chart, opens=chart.opens and info["kind"] != "sft") for chart in found.charts]


def _of_sft(found: _Found) -> None:
    lines = [Line("loss", "training loss"), Line("val/loss", "validation loss", "s5", points=True)]
    found.add("loss", "Loss", "nats per token", lines, wide=True)
    found.add("examples", "Examples seen", "", [Line("examples/total", "examples", "s6", steady=True)])


def _of_rl(found: _Found, names: Sequence[str], info: Mapping[str, Any]) -> None:
    tasks = environments(names)
    held_out = [
        Line(f"eval/{env}/reward/mean", f"held out: {env}", color, low=f"eval/{env}/ci95/low",
             high=f"eval/{env}/ci95/high", points=True)
        for env, color in zip(tasks, _cycled("s5", len(tasks)), strict=True)
    ]  # fmt: skip
    found.add(
        "reward", "Reward", "", [Line("reward/mean", "training"), *held_out], wide=True,
        note="Mean of all completions of a step. Bars are 95 % intervals of held-out evaluations.",
    )  # fmt: skip
    weights = info.get("reward_weights") or {}
    parts = [(name, float(weights.get(name, 1.0))) for name in components(names)]
    parts = [(name, weight) for name, weight in parts if weight]
    lines = [
        Line(f"reward/{name}/mean", name if weight == 1 else f"{name} × {weight:g}", color, weight)
        for (name, weight), color in zip(parts, _cycled("s1", len(parts)), strict=True)
    ]
    note = "Mean of each component, where it does not abstain, times its weight: together the reward."
    found.add("components", "What the reward is made of", "reward", lines, stack=True, note=note)
    outcomes = [Line(f"outcome/{name}", name.replace("_", " "), name) for name in OUTCOMES]
    found.add("outcomes", "Outcomes", _SHARE, outcomes, stack=True, share=True)
    exact = [
        Line(f"eval/{env}/exact", f"held out: {env}", color, low=f"eval/{env}/exact/ci95/low",
             high=f"eval/{env}/exact/ci95/high", points=True)
        for env, color in zip(tasks, _cycled("s5", len(tasks)), strict=True)
    ]  # fmt: skip
    lines = [Line("outcome/correct", "training", "correct"), *exact]
    found.add("correct", "Correct", _SHARE, lines, share=True)
    _of_completions(found, tasks)
    lines = [Line("frac_reward_zero_std", "no signal", "s4")]
    note = "Groups in which all rewards are equal: they teach nothing."
    found.add("zero_std", "Groups without signal", "share of the groups", lines, share=True, note=note)
    pool = [
        Line(f"pool/{name}", name, color) for name, color in (("active", "s1"), ("retired", "s2"), ("parked", "s6"))
    ]
    found.add("pool", "Prompts in the pool", "prompts", pool, stack=True)


def _of_completions(found: _Found, tasks: Sequence[str]) -> None:
    length = [Line("completion/length/mean", "training")]
    length += [Line(f"eval/{env}/completion/length/mean", f"held out: {env}", "s5", points=True) for env in tasks]
    found.add("length", "Length of completions", "tokens", length)
    found.add(
        "length_reward", "Length against reward", "reward", [Line("reward/mean", "a step")],
        against="completion/length/mean" if "completion/length/mean" in found.names else "tokens/total",
        against_label="mean length, tokens", note="A point is a step; later ones are darker.",
    )  # fmt: skip
    if "reward/mean" in found.names:
        note = "Some of a few steps, by outcome; a click opens one."
        title, label = "Length against reward, completions", "length, tokens"
        found.charts.append(Chart("completions", title, "reward", (), note, against_label=label, completions=True))
    cut = [Line("completion/truncated", "cut at the limit", "truncated"), Line("completion/repeated", "repeated", "s4")]
    cut += [Line("completion/identical", "identical", "s6")]
    note = (
        "Repeated: sampled the same tokens as an earlier completion of its prompt; identical: as one of another prompt."
    )
    found.add("truncated", "Truncated, repeated, identical", _SHARE, cut, share=True, note=note)
    found.add("turns", "Turns", "turns per completion", [Line("turns/mean", "turns")])


def _of_policy(found: _Found) -> None:
    found.add("kl", "KL to the initial policy", "nats per token", [Line("kl", "KL", "s3")])
    gap = [
        Line("logprob_gap/mean", "mean"),
        Line("logprob_gap/max", "largest", "s4"),
        Line("canary/gap/max", "canary", "s6", dots=True),
    ]
    note = (
        "Difference of the log-probabilities of trainer and sampler for the sampled tokens, zeros left out (the axis "
    )
    note += "has none). Canary: the largest on one fixed text, which both score after each publication of weights."
    found.add("gap", "Gap between sampler and trainer", "nats", gap, log=True, note=note)
    lines = [Line("clipped", "clipped", "s4")]
    found.add("clipped", "Tokens with a clipped ratio", "share of the tokens", lines, share=True)
    stale = [Line("staleness/mean", "mean"), Line("staleness/max", "largest", "s4")]
    if "staleness/max" in found.names:
        found.add("staleness", "Staleness", "versions", stale)
    found.add("loss", "Loss", "", [Line("loss", "loss", "s6")])


def _of_time(found: _Found, names: Sequence[str]) -> None:
    there = [name[5:] for name in names if name.startswith("time/")]
    phases = [name for name in _PHASES if name in there]
    phases += [name for name in there if name not in (*_PHASES, "step", "total")]
    if "wait" in phases:  # of several processes: what trainer and server did meanwhile is no part of the step
        phases = [name for name in phases if name not in ("train", "publish", "update")]
    others = zip((name for name in phases if name not in _PHASES), _PALETTE * len(phases), strict=False)
    colors = _PHASES | dict(others)
    lines = [Line(f"time/{name}", name, colors[name]) for name in phases]
    note = "Other: what belongs to no phase."
    found.add("timings", "Seconds of a step", "s", lines, stack=True, whole="time/step", note=note, opens=False)
    found.add("speed", "Speed", "tokens per second", [Line("tokens/s", "tokens/s", "s2")], opens=False)
    idle = [name for name in names if name.startswith("idle/")]
    lines = [Line(name, name[5:], color) for name, color in zip(idle, _cycled("s1", len(idle)), strict=True)]
    found.add("idle", "Idle", "s", lines, opens=False)


def _cycled(first: str, count: int) -> list[str]:
    """Names of so many colours, from `first` on."""
    begin = _PALETTE.index(first)
    return [_PALETTE[(begin + index) % len(_PALETTE)] for index in range(count)]


def sparkline(values: Sequence[float], width: int = 112, height: int = 22) -> Markup:
    """Values, of which there is at least one, as a small line; from 0 to 1 if they fit there, else min to max.

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
    ys = [height - 2 - (mean - low) * scale for mean in means]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="from {} to {}">'
        '<polyline points="{}" fill="none" stroke="var(--accent)" stroke-width="1.5"/>'
        '<circle cx="{:.1f}" cy="{:.1f}" r="2" fill="var(--accent)"/></svg>'
    ).format(width, height, f"{values[0]:.3g}", f"{values[-1]:.3g}", points, xs[-1], ys[-1])
