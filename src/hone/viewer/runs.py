"""The list of runs: a row for each, and the same facts as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any

from markupsafe import Markup

from hone.runs.progress import duration, percent, reward_interval, thousands
from hone.runs.summary import exactness, latest, local_time
from hone.viewer.catalog import Entry, RunState
from hone.viewer.charts import environments, sparkline
from hone.viewer.site import Site

COLUMNS = {
    "name": "run",
    "status": "status",
    "steps": "steps",
    "latest": "latest",
    "held_out": "held out, before → after",
    "correct": "correct",
    "exact": "exact",
    "alarms": "alarms",
    "tokens": "tokens",
    "time": "time",
    "usd": "USD",
    "started": "started",
}
"""Columns of the table by key, with their heads."""
OF_EVALUATIONS = {name: COLUMNS[name] for name in ("name", "status", "held_out", "correct", "time", "usd", "started")}
OF_EVALUATIONS |= {"name": "evaluation", "held_out": "reward"}
"""The same of a table of runs of `hone eval`."""


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, by what it is sorted, a note below it, and what the pointer shows."""

    text: str = ""
    sort: str | float = ""
    note: Markup | str = ""
    title: str = ""


@dataclass(frozen=True)
class Row:
    """A run in the table, with its cells by column. The filter looks in `words`; `share` is how far one at work is."""

    entry: Entry
    cells: dict[str, Cell]
    words: str
    share: float | None


def runs(site: Site, query: Mapping[str, str]) -> str:
    """Show all runs: those that trained in a table, evaluations and earlier runs below."""
    entries = site.catalog.entries()
    rows = [_row(entry) for entry in entries if entry.summary is not None]
    evaluations = [row for row in rows if row.entry.is_evaluation]
    trained = [row for row in rows if not row.entry.is_evaluation]
    return site.page(
        "runs.html",
        "",
        "Runs",
        rows=[row for row in trained if not row.entry.previous],
        previous=[row for row in trained if row.entry.previous],
        evaluations=evaluations,
        unreadable=[entry for entry in entries if entry.damage],
        around=None if entries else site.catalog.around,
        quoted=quote,
        columns=_columns(trained, COLUMNS),
        eval_columns=_columns(evaluations, OF_EVALUATIONS),
        live=any(row.entry.state.pid is not None for row in rows),
    )


def _columns(rows: list[Row], heads: dict[str, str]) -> dict[str, str]:
    """Return the columns of a table of these runs: those of prices and alarms only where one has some."""
    return {
        key: head for key, head in heads.items()
        if key not in ("usd", "alarms") or any(row.cells[key].text for row in rows)
    }  # fmt: skip


def _row(entry: Entry) -> Row:
    run = entry.state
    history, progress = run.progress.history, run.progress
    began = run.info.get("started") or run.info.get("ended") or ""
    alarms = ", ".join(str(alarm.get("name")) for alarm in run.alarms)
    evidence = "; ".join(str(alarm.get("evidence")) for alarm in run.alarms)
    left = f"{duration(run.left)} left" if run.left is not None else ""
    exact = run.info.get("exact")
    cells = {
        "status": Cell(run.status, run.status, left),
        "steps": Cell(f"{progress.done} of {progress.max_steps or '?'}", progress.done),
        "latest": Cell(latest(run), history[-1] if history else "", sparkline(history) if history else ""),
        "held_out": _held_out(run),
        "correct": _correct(run),
        "exact": Cell() if exact is None else Cell("yes" if exact else "no", str(exact), title=exactness(run.info)),
        "alarms": Cell(alarms, len(run.alarms), title=evidence),
        "tokens": Cell(thousands(run.spent.tokens) if run.spent.tokens else "", run.spent.tokens),
        "time": Cell(duration(run.seconds), run.seconds),
        "usd": Cell("" if run.spent.usd is None else f"{run.spent.usd:.2f}", run.spent.usd or 0.0),
        "started": Cell(local_time(began), began),
    }
    words = " ".join([entry.name, run.kind, run.status, run.task or "", run.info["id"], alarms])
    at_work = run.status == "running" and progress.max_steps
    return Row(entry, cells, words.lower(), min(1.0, progress.done / progress.max_steps) if at_work else None)


def _held_out(run: RunState) -> Cell:
    """Return the first and the last evaluation, with the last one's 95 % interval."""
    first, last = run.first_evals or run.progress.evals, run.progress.evals
    for name in ("val/loss", *(f"eval/{env}/reward/mean" for env in environments(list(last)))):
        if (value := last.get(name)) is None:
            continue
        what = "loss " if name == "val/loss" else ""
        interval = reward_interval(last, name.removeprefix("eval/").removesuffix("/reward/mean"))
        note = "" if interval is None else f"95 %: {interval[0]:.3f} to {interval[1]:.3f}"
        before = first.get(name) if run.kind != "eval" and first != last else None
        return Cell(what + ("" if before is None else f"{before:.3f} → ") + f"{value:.3f}", value, note)
    return Cell()


def _correct(run: RunState) -> Cell:
    """Return the share of the held-out completions that are correct; without any, of the last step's."""
    last = run.progress.evals
    for env in environments(list(last)):
        if (value := last.get(f"eval/{env}/correct")) is not None:
            return Cell(percent(value), value, title="of the held-out completions")
    value = run.progress.metrics.get("outcome/correct")
    return Cell() if value is None else Cell(percent(value), value, "in training")


def _facts(entry: Entry) -> dict[str, Any]:
    """Return how a run stands, as JSON; of one that is unreadable why."""
    facts: dict[str, Any] = {"slug": entry.slug, "name": entry.name, "path": str(entry.path), "damage": entry.damage}
    if entry.summary is None:
        return facts
    run, progress = entry.summary, entry.summary.progress
    return facts | {
        "id": run.info["id"],
        "kind": run.kind,
        "task": run.task,
        "seed": run.info["seed"],
        "status": run.status,
        "live": run.pid is not None,
        "previous": entry.previous,
        "steps": progress.done,
        "max_steps": progress.max_steps,
        "seconds": run.seconds,
        "seconds_left": run.left,
        "tokens": run.spent.tokens,
        "usd": run.spent.usd,
        "latest": progress.history[-1] if progress.history else None,
        "evaluated_at": progress.eval_step,
        "first_evaluation": run.first_evals,
        "evaluation": progress.evals,
        "alarms": [alarm.get("name") for alarm in run.alarms],
        "exact": run.info.get("exact"),
        "started": run.info.get("started"),
        "ended": run.info.get("ended"),
    }


def runs_data(site: Site, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return how all runs stand, for scripts."""
    return [_facts(entry) for entry in site.catalog.entries()]


def state_data(site: Site, query: Mapping[str, str], slug: str) -> dict[str, Any]:
    """Return how a run stands, for scripts."""
    return _facts(site.catalog.entry(slug))
