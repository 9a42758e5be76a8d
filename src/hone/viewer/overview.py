"""What the overview of a run says: in words, as charts, and what it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hone.errors import UserError
from hone.runs import predictions
from hone.runs.alarms import OVER
from hone.runs.progress import duration, percent, reward_interval, short_seconds, thousands
from hone.runs.reader import Run
from hone.runs.summary import describe_event
from hone.runs.verdicts import (
    alarms_in,
    audit_in_words,
    certificate_in_words,
    code_in_words,
    exactness,
    machine_in_words,
)
from hone.viewer.charts import environments
from hone.viewer.series import Series
from hone.viewer.state import RunState
from hone.viewer.store import Store

SCATTERED_STEPS, SCATTERED_ROWS = 12, 170
"""Of so many steps at most so many completions are drawn one by one."""
_NO_MARKER = {"alarm", OVER, "audit", "checkpoint", "weights", "not_finite", "predicted"}
"""Events that are no lines on the curves: alarms are more, and of the others there may be one at every step."""


INTERVAL = (
    "of the last evaluation, over examples: Student's t of a reward, cut where rewards end, Wilson's of a share and "
    "of a reward of 0 or 1 (Student's t, too, of several completions of an example). That of the run card is the "
    "bootstrap's, which need not be symmetric."
)
"""What the intervals of the overview are."""


@dataclass(frozen=True)
class Marker:
    """What happened at a step, to be shown on the curves; `until` the step at which it was over, if it lasted."""

    step: int
    kind: str
    text: str
    until: int | None = None


def headline(run: RunState) -> str:
    """What is trained on what: `hone/tiny by RL on reverse-text, seed 0`."""
    model = run.config.get("model")
    name = model.get("name", "") if isinstance(model, dict) else model or ""
    what = {"rl": "by RL", "sft": "by SFT", "eval": "evaluated"}.get(run.kind, run.kind)
    data = run.config.get("data", {})
    source = run.task or data.get("name") or data.get("path") if isinstance(data, dict) else run.task
    return f"{_short(str(name)) or 'A model'} {what}{f' on {source}' if source else ''}, seed {run.info['seed']}"


def _short(name: str) -> str:
    """The last two parts of a path."""
    return "/".join(name.rstrip("/").split("/")[-2:])


def where(run: RunState) -> str:
    """How far it is, in words."""
    if run.kind == "eval":
        return f"{run.status}{f' in {short_seconds(run.seconds)}' if run.seconds else ''}"
    done, steps = run.progress.done, run.progress.max_steps
    left = "" if run.left is None else f", {duration(run.left)} left at this pace"
    taken = f", {thousands(run.spent.tokens)} tokens trained on" if run.spent.tokens else ""
    cost = "" if run.spent.usd is None else f", {run.spent.usd:.2f} USD"
    return f"{run.status}: {done} of {steps or '?'} steps in {duration(run.seconds)}{taken}{cost}{left}"


@dataclass(frozen=True)
class Change:
    """A number before and after: of the first and the last evaluation, or the first and the last step."""

    label: str
    before: str
    """A dash where there is one only."""
    after: str
    interval: str = ""
    """95 % interval of `after`."""
    ends: str = ""
    """The versions, or the steps, that the two are of."""


def changes(run: RunState, series: Series) -> list[Change]:
    """What training changed, on held-out examples first."""
    found = []
    names = series.names
    for env in environments(names):
        known = reward_interval({name: series.latest(name) for name in names if name.startswith("eval/")}, env)
        interval = "" if known is None else f"{known[0]:.3f} to {known[1]:.3f}"
        found += _change(series, f"held-out reward, {env}", f"eval/{env}/reward/mean", interval)
        low, high = (series.latest(f"eval/{env}/exact/ci95/{end}") for end in ("low", "high"))
        interval = "" if low is None or high is None else f"{percent(low)} to {percent(high)}"
        found += _change(series, f"held out and correct, {env}", f"eval/{env}/exact", interval, share=True)
    found += _change(series, "validation loss, nats per token", "val/loss")
    found += _change(series, "training reward", "reward/mean")
    if run.kind == "sft":
        found += _change(series, "training loss, nats per token", "loss")
    found += _change(series, "correct in training", "outcome/correct", share=True)
    found += _change(series, "length, tokens", "completion/length/mean", digits=1)
    found += _change(series, "entropy, nats per token", "entropy")
    return found


def _change(
    series: Series, label: str, name: str, interval: str = "", share: bool = False, digits: int = 3
) -> Iterator[Change]:
    steps, values = series.points(name)
    if len(values):
        shown = [percent(value) if share else f"{value:.{digits}f}" for value in map(float, values[[0, -1]])]
        what = "version" if name.startswith(("eval/", "val/")) else "step"
        several = len(steps) > 1
        ends = f"{what}s {steps[0]} and {steps[-1]}" if several else f"{what} {steps[0]}"
        yield Change(label, shown[0] if several else "–", shown[1], interval, ends)


def markers(events: Sequence[dict[str, Any]]) -> list[Marker]:
    """What happened during a run, but for what happens all the time. An alarm lasts until it is over."""
    events = [event for event in events if "kind" in event]
    found = [Marker(one.since, "alarm", f"{one.name}: {one.evidence}", one.over) for one in alarms_in(events)]
    for event in events:
        kind, step = str(event.get("kind")), event.get("step")
        if step is not None and kind not in _NO_MARKER and (kind != "start" or step):
            found.append(Marker(step, kind, describe_event(event)))
    return sorted(found, key=lambda one: one.step)


def completions(path: Path, steps: Sequence[int]) -> dict[str, list[Any]]:
    """Some completions of some steps, evenly chosen from those that have rollouts: length in tokens, reward, outcome.

    A step that can't be read is left out.
    """
    found: dict[str, list[Any]] = {name: [] for name in ("step", "row", "tokens", "reward", "outcome")}
    chosen = [steps[round(place)] for place in np.linspace(0, len(steps) - 1, min(len(steps), SCATTERED_STEPS))]
    for step in chosen:
        try:
            rows = Store(path).rows(step, ("reward", "outcome", "sampled_mask"))
        except UserError:
            continue
        for row in rows[:: 1 + len(rows) // SCATTERED_ROWS]:
            if row["reward"] is not None and math.isfinite(row["reward"]):
                for name, values in found.items():
                    values.append(step if name == "step" else row[name])
    return found


@dataclass(frozen=True)
class LastValues:
    """A metric of the table that stands for the charts where no script runs."""

    name: str
    first: float
    last: float
    low: float
    high: float


def table(series: Series, names: list[str]) -> list[LastValues]:
    """First, last, least and largest value of those metrics that have one."""
    found = []
    for name in names:
        _, values = series.points(name)
        if len(values):
            found.append(LastValues(name, *map(float, (values[0], values[-1], values.min(), values.max()))))
    return found


def predicted(run: RunState) -> tuple[str, list[predictions.Scored]]:
    """What is wrong with the run's predictions, and what became of them."""
    try:
        damage = predictions.problem(run.info, run.path)
        return damage, [] if damage else predictions.score(run.info, run.path)
    except UserError as error:
        return str(error) if run.info.get("predictions") else "", []


def made_with(run: RunState) -> dict[str, str]:
    """Machine, versions, digests: what it takes to say where the numbers come from."""
    info = run.info
    facts = {
        "run": info["id"],
        "exact": exactness(info) if run.kind != "eval" else "",
        "machine": _told(machine_in_words, info),
        "code": _told(code_in_words, info),
        "versions": ", ".join(f"{name} {version}" for name, version in info["versions"].items() if version),
        "certificate": certificate_in_words(run.path),
        "audit": audit_in_words(run.path),
    }
    facts |= {f"digest of {name}": str(value) for name, value in (info.get("sources") or {}).items()}
    if run.kind != "eval" and (hashes := Run(run.path).hashes()):
        facts[f"weights of version {hashes[-1].get('step')}"] = str(hashes[-1].get("weights"))
    if parent := info.get("parent"):
        facts["goes on from"] = f"step {parent['step']} of {parent['dir']} (run {parent['id']})"
    return {name: value for name, value in facts.items() if value}


def _told(words: Callable[[Mapping[str, Any]], str], info: Mapping[str, Any]) -> str:
    """What is said of a run.json; empty if it does not have what that takes."""
    try:
        return words(info)
    except (KeyError, TypeError):
        return ""


def smoothing(series: dict[str, dict[str, Any]]) -> int:
    """Steps of the moving mean that a page begins with, an odd number: a thirtieth of the run's."""
    rows = max((len(one["y"]) for one in series.values()), default=0)
    return min(101, rows // 30 // 2 * 2 + 1)


def live_text(run: RunState, changes: list[Change]) -> dict[str, str]:
    """What of the page's words goes on while a run is at work, by the name of the place."""
    found = {"where": where(run)}
    for change in changes:
        found |= {f"now {change.label}": change.after, f"interval {change.label}": change.interval}
        found |= {f"ends {change.label}": change.ends}
    return found
