"""The overview page of a run, with charts, and the page of its card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from starlette.datastructures import QueryParams

from hone.extension import gathered
from hone.extensions.viewer.card.facts import facts_of
from hone.extensions.viewer.card.files import body, stored
from hone.extensions.viewer.charts import charts
from hone.extensions.viewer.series import Series, read_series, to_json
from hone.extensions.viewer.site import Links, Site
from hone.runs.metrics import SHARE, label, unit
from hone.runs.progress import duration, percent, short_seconds, thousands
from hone.runs.summary import Summary, alarms_in, describe_event, environments, next_commands, typed
from hone.runs.view import OVER

_NO_MARKER = {"alarm", OVER, "audit", "checkpoint", "weights", "pushed", "not_finite", "predicted"}
"""Events that are not lines on the curves: alarms are areas, and the others may happen at every step."""
_SOMEWHERE = 10**9
"""Placeholder for a step in links. Scripts replace it by the clicked step."""
INTERVAL = (
    "of the last evaluation, over examples. Rewards: Student's t, cut at the reward's bounds. Shares and rewards of "
    "0 or 1: Wilson's, with the effective number of completions if examples have several."
)
_CHANGES = {
    "val/loss": "validation loss, nats per token",
    "reward/mean": "training reward",
    "loss": "training loss, nats per token",
    "outcome/correct": "correct in training",
    "completion/length/mean": "length, tokens",
    "entropy": "entropy, nats per token",
}
"""Training metrics shown with first and current value; `loss` only for SFT."""


def run(site: Site, query: QueryParams, slug: str) -> str:
    entry = site.catalog.entry(slug)
    state, run = entry.state, entry.state.files
    events, links = run.events(), Links(f"run/{slug}/")
    series = read_series(entry.path)
    drawn = charts(series.names, state.info)
    stacks = [list(chart.metrics()) for chart in drawn if chart.stack]
    data = to_json(series, dict.fromkeys(name for chart in drawn for name in chart.metrics()), stacks)
    rows = max((len(one["y"]) for one in data["series"].values()), default=0)
    data |= {
        "charts": [asdict(chart) for chart in drawn],
        "markers": markers(events),
        "smooth": min(101, rows // 30 // 2 * 2 + 1),  # a thirtieth of the run's steps, an odd number
        "links": {"step": links.to("run", slug, "step", _SOMEWHERE), "eval": links.to("run", slug, "eval", _SOMEWHERE)},
        "somewhere": str(_SOMEWHERE),
        "steps": run.rollout_steps(),
        "evals": run.evals(),
    }
    changed_values = list(changes(state, series))
    return site.run_page(
        "run.html",
        entry,
        "",
        entry.name,
        run=state,
        live=state.pid is not None,
        headline=headline(state),
        stats=list(stats(state, changed_values)),
        changes=changed_values,
        interval_title=INTERVAL,
        charts=drawn,
        chart_data=data,
        evaluated=[(label(name), _number(name, value), name) for name, value in state.progress.evals.items()],
        records={name: one.in_words(state.info, entry.path) for name, one in gathered("RECORDS", {}).items()},
        command=typed(state.info["command"]),
        next_commands=next_commands(state),
        events=[describe_event(event) for event in events],
    )


def card(site: Site, query: QueryParams, slug: str) -> str:
    entry = site.catalog.entry(slug)
    found = facts_of(entry.path, stored)
    return site.run_page("card.html", entry, "card/", f"Card of {entry.name}", card=found, body=body(found))


def headline(run: Summary) -> str:
    """Return a title such as `hone/tiny by RL on reverse-text, seed 0`."""
    model, data = run.config.get("model"), run.config.get("data")
    name = str(model.get("name") if isinstance(model, dict) else model or "")
    short = "/".join(name.rstrip("/").split("/")[-2:])
    what = {"rl": "by RL", "sft": "by SFT", "eval": "evaluated"}.get(run.kind, run.kind)
    source = run.task or (isinstance(data, dict) and (data.get("name") or data.get("path")))
    return f"{short or 'A model'} {what}{f' on {source}' if source else ''}, seed {run.info['seed']}"


def stats(run: Summary, changed: Sequence[tuple[str, str, str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield (title, value, note) for the run's state; held-out results in `changed` come first."""
    for what, before, now, interval, _ in changed:
        if what.startswith("held"):
            yield what, now, ", ".join([f"before: {before}", *([f"95 %: {interval}"] if interval else [])])
    if run.kind != "eval":
        left = "" if run.left is None else f"{duration(run.left)} left at this pace"
        yield "steps", f"{run.progress.done} of {run.progress.max_steps or '?'}", left
    yield "time", duration(run.seconds) if run.kind != "eval" else short_seconds(run.seconds or 0), ""
    if run.spent.tokens:
        yield "tokens trained on", thousands(run.spent.tokens), ""
    if run.spent.usd is not None:
        yield "cost", f"{run.spent.usd:.2f} USD", ""


def changes(run: Summary, series: Series) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield (title, value before or "–", value now, 95 % interval, versions) by metric, held-out metrics first."""
    rows: list[tuple[str, str, str]] = []
    for env in environments(series.names):
        rows += [(f"eval/{env}/reward/mean", f"held-out reward, {env}", f"eval/{env}/ci95")]
        rows += [(f"eval/{env}/correct", f"held out and correct, {env}", f"eval/{env}/correct/ci95")]
    rows += [(name, what, "") for name, what in _CHANGES.items() if name != "loss" or run.kind == "sft"]
    for name, what, interval in rows:
        steps, values = series.points(name)
        if not len(values):
            continue
        first, last = (_number(name, value, 3) for value in values[[0, -1]].tolist())
        low, high = (series.latest(f"{interval}/{end}") for end in ("low", "high"))
        known = low is not None and high is not None and high - low > 1e-9  # else the interval is unknown
        ends = f"{_number(name, low, 3)} to {_number(name, high, 3)}" if known else ""
        kind = "version" if name.startswith(("eval/", "val/")) else "step"
        several = len(steps) > 1
        at = f"{kind}s {steps[0]} and {steps[-1]}" if several else f"{kind} {steps[0]}"
        yield what, first if several else "–", last, ends, at


def _number(name: str, value: float | None, digits: int | None = None) -> str:
    if value is None:
        return "–"
    if unit(name) == SHARE:
        return percent(value)
    return f"{value:.6g}" if digits is None else f"{value:.{1 if unit(name) == 'tokens' else digits}f}"


def markers(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return alarms and rare events to mark on the curves. `until` is the step at which an alarm ended."""
    found = [
        {"step": one.since, "kind": "alarm", "text": f"{one.name}: {one.evidence}", "until": one.over}
        for one in alarms_in(events)
    ]
    for event in events:
        kind, step = str(event.get("kind")), event.get("step")
        if step is not None and kind not in _NO_MARKER and (kind != "start" or step):
            found.append({"step": step, "kind": kind, "text": describe_event(event), "until": None})
    return sorted(found, key=lambda one: one["step"])
