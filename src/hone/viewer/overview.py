"""The overview of a run: in words and as charts. What the run was made of stands on its card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hone.errors import UserError
from hone.runs.alarms import OVER
from hone.runs.metrics import SHARE, label, unit
from hone.runs.progress import duration, percent, reward_interval, short_seconds, thousands
from hone.runs.reader import Run
from hone.runs.summary import alarms_in, describe_event, next_commands, typed
from hone.viewer import curves
from hone.viewer.catalog import RunState
from hone.viewer.charts import charts, environments
from hone.viewer.series import Series, to_json
from hone.viewer.site import Links, Site

_NO_MARKER = {"alarm", OVER, "audit", "checkpoint", "weights", "not_finite", "predicted"}
"""Events that are no lines on the curves: alarms are more, and of the others there may be one at every step."""
_SOMEWHERE = 10**9
"""A step that no run has: scripts put the one that was clicked in its place."""
INTERVAL = (
    "of the last evaluation, over examples: Student's t of a reward, cut where rewards end, Wilson's of a share and "
    "of a reward of 0 or 1 (Student's t, too, of several completions of an example). That of the run card is the "
    "bootstrap's, which need not be symmetric."
)
"""What the intervals of the overview are."""


def run(site: Site, query: Mapping[str, str], slug: str) -> str:
    """Show a run's overview."""
    entry = site.catalog.entry(slug)
    state, run = entry.state, Run(entry.path)
    curves.check(query)
    events, links = run.events(), Links(f"run/{slug}/")
    with site.series.read(entry.path) as series:
        drawn = charts(series, state.info) if state.kind != "eval" else []
        changed = changes(state, series)
        stacks = [list(chart.metrics()) for chart in drawn if chart.stack]
        data = to_json(series, dict.fromkeys(name for chart in drawn for name in chart.metrics()), stacks=stacks)
    rows = max((len(one["y"]) for one in data["series"].values()), default=0)
    data |= {
        "charts": [asdict(chart) for chart in drawn],
        "markers": [asdict(one) for one in markers(events)],
        "smooth": min(101, rows // 30 // 2 * 2 + 1),  # a thirtieth of the run's steps, an odd number
        "links": {"step": links.step(slug, _SOMEWHERE), "eval": links.evaluation(slug, _SOMEWHERE)},
        "somewhere": str(_SOMEWHERE),
        "steps": run.rollout_steps(),
        "evals": run.evals(),
    }
    return site.run_page(
        "run.html",
        entry,
        "",
        entry.name,
        run=state,
        live=state.pid is not None,
        headline=headline(state),
        where=where(state),
        changes=changed,
        interval_title=INTERVAL,
        charts=drawn,
        chart_data=data,
        evaluated=evaluated(state.progress.evals) if state.kind == "eval" else [],
        command=typed(state.info["command"]),
        next_commands=next_commands(state),
        events=[describe_event(event) for event in events],
    )


def series_data(site: Site, query: Mapping[str, str], slug: str) -> dict[str, Any]:
    """Return metrics of a run: `names` (several, by default all), of the steps above `after`."""
    entry = site.catalog.entry(slug)
    text = query.get("after")
    if text is not None and not re.fullmatch(r"-?\d{1,9}", text):
        raise UserError(f"after is {text[:50]!r}, which is no step")
    with site.series.read(entry.path) as series:
        names = curves.names_in(query, "names", series.names) or series.names
        facts = {"name": entry.name, "live": entry.state.pid is not None, "names": series.names}
        facts |= {"unknown": [name for name in names if name not in series.names]}
        facts |= {"units": {name: unit(name) for name in series.names}}
        return facts | to_json(series, names, None if text is None else int(text))


def headline(run: RunState) -> str:
    """Say what is trained on what: `hone/tiny by RL on reverse-text, seed 0`."""
    model, data = run.config.get("model"), run.config.get("data")
    name = str(model.get("name") if isinstance(model, dict) else model or "")
    short = "/".join(name.rstrip("/").split("/")[-2:])
    what = {"rl": "by RL", "sft": "by SFT", "eval": "evaluated"}.get(run.kind, run.kind)
    source = run.task or (isinstance(data, dict) and (data.get("name") or data.get("path")))
    return f"{short or 'A model'} {what}{f' on {source}' if source else ''}, seed {run.info['seed']}"


def where(run: RunState) -> str:
    """Say how far it is."""
    if run.kind == "eval":
        return f"{run.status}{f' in {short_seconds(run.seconds)}' if run.seconds else ''}"
    done, steps = run.progress.done, run.progress.max_steps
    left = "" if run.left is None else f", {duration(run.left)} left at this pace"
    taken = f", {thousands(run.spent.tokens)} tokens trained on" if run.spent.tokens else ""
    cost = "" if run.spent.usd is None else f", {run.spent.usd:.2f} USD"
    return f"{run.status}: {done} of {steps or '?'} steps in {duration(run.seconds)}{taken}{cost}{left}"


@dataclass(frozen=True)
class Change:
    """A number before and after: of the first and the last evaluation, or the first and the last step.

    `before` is a dash where there is one only; `interval` is the 95 % interval of `after`; `ends` are the versions, or
    the steps, that the two are of.
    """

    label: str
    before: str
    after: str
    interval: str
    ends: str


def changes(run: RunState, series: Series) -> list[Change]:
    """Return what training changed, on held-out examples first."""
    found: list[Change] = []
    for env in environments(series.names):
        known = reward_interval({name: series.latest(name) for name in series.names if name.startswith("eval/")}, env)
        interval = "" if known is None else f"{known[0]:.3f} to {known[1]:.3f}"
        found += _change(series, f"held-out reward, {env}", f"eval/{env}/reward/mean", interval)
        low, high = (series.latest(f"eval/{env}/correct/ci95/{end}") for end in ("low", "high"))
        interval = "" if low is None or high is None else f"{percent(low)} to {percent(high)}"
        found += _change(series, f"held out and correct, {env}", f"eval/{env}/correct", interval, share=True)
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


@dataclass(frozen=True)
class Marker:
    """What happened at a step, to be shown on the curves; `until` the step at which it was over, if it lasted."""

    step: int
    kind: str
    text: str
    until: int | None = None


def markers(events: Sequence[dict[str, Any]]) -> list[Marker]:
    """Return what happened during a run, but for what happens all the time. An alarm lasts until it is over."""
    found = [Marker(one.since, "alarm", f"{one.name}: {one.evidence}", one.over) for one in alarms_in(events)]
    for event in events:
        kind, step = str(event.get("kind")), event.get("step")
        if step is not None and kind not in _NO_MARKER and (kind != "start" or step):
            found.append(Marker(step, kind, describe_event(event)))
    return sorted(found, key=lambda one: one.step)


def evaluated(metrics: Mapping[str, float | None]) -> list[tuple[str, str, str]]:
    """Return what each number of an evaluation is, the number, shares in percent, and its metric."""
    found = []
    for name, value in metrics.items():
        text = "–" if value is None else percent(value) if unit(name) == SHARE else f"{value:.6g}"
        found.append((label(name), text, name))
    return found
