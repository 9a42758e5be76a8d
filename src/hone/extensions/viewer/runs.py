"""The page with the list of runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from starlette.datastructures import QueryParams

from hone.extensions.viewer.catalog import Entry, counted
from hone.extensions.viewer.charts import sparkline
from hone.extensions.viewer.site import Site, names_in
from hone.runs.progress import duration, percent, reward_interval, thousands
from hone.runs.settings import differing
from hone.runs.summary import Summary, environments, exactness, latest, local_time, shortened

COLUMNS = {
    "name": "run",
    "status": "status",
    "steps": "steps",
    "latest": "latest",
    "held_out": "held out, before → after",
    "correct": "correct",
    "reproducible": "reproducible",
    "alarms": "alarms",
    "tokens": "tokens",
    "time": "time",
    "usd": "USD",
    "started": "started",
}
EVALUATIONS = {name: COLUMNS[name] for name in ("name", "status", "held_out", "correct", "time", "usd", "started")}
EVALUATIONS |= {"name": "evaluation", "held_out": "reward"}
"""Columns for runs of `hone eval`."""


@dataclass(frozen=True)
class Cell:
    """A table cell: text, sort key, note below the text, and tooltip."""

    text: str = ""
    sort: str | float = ""
    note: Markup | str = ""
    title: str = ""


@dataclass(frozen=True)
class Row:
    """A run's row, with cells by column. The filter searches `words`. `share` is the finished part of the run."""

    entry: Entry
    cells: dict[str, Cell]
    words: str
    share: float | None


def runs(site: Site, query: QueryParams) -> str:
    """Show a table of training runs; below it, tables of evaluations and of earlier runs.

    The query has `q` (words to find), `settings` (config keys to show) and `sort` (a column; `-`: the highest first).
    """
    entries = site.catalog.entries()
    readable = [entry for entry in entries if entry.summary is not None]
    offered = differing_settings(entry.state for entry in readable)
    settings = names_in(query, "settings")
    rows = [_row(entry, settings) for entry in readable]
    words = query.get("q", "").lower().split()
    shown = [row for row in rows if all(word in row.words for word in words)]
    shown = _sorted(shown, query.get("sort", ""))
    parts = {
        "runs": [row for row in shown if not row.entry.is_evaluation and not row.entry.previous],
        "evaluations": [row for row in shown if row.entry.is_evaluation],
        "previous": [row for row in shown if not row.entry.is_evaluation and row.entry.previous],
    }
    return site.page(
        "runs.html",
        "",
        "Runs",
        query=query,
        tables=parts,
        columns={id: _columns(id, part, settings) for id, part in parts.items()},
        shown=len(shown),
        total=len(rows),
        counted=counted(entries),
        unreadable=[entry for entry in entries if entry.damage],
        offered=list(dict.fromkeys([*settings, *offered])),
        settings=settings,
        unknown=[name for name in settings if not any(name in entry.state.settings for entry in readable)],
        live=any(row.entry.state.pid is not None for row in rows),
    )


def differing_settings(states: Iterable[Summary]) -> list[str]:
    """Return the settings that can change results and differ between runs of the same kind."""
    first: dict[str, dict[str, Any]] = {}
    names: set[str] = set()
    for state in states:
        names |= set(differing(first.setdefault(state.kind, state.settings), state.settings, names_matter=True))
    return sorted(names)


def _sorted(rows: list[Row], sort: str) -> list[Row]:
    column = sort.removeprefix("-")
    values = {row.entry.slug: row.cells.get(column, Cell()).sort for row in rows}
    filled = [row for row in rows if values[row.entry.slug] != ""]
    filled.sort(key=lambda row: (isinstance(value := values[row.entry.slug], str), value), reverse=sort[:1] == "-")
    return filled + [row for row in rows if values[row.entry.slug] == ""]


def _columns(id: str, rows: list[Row], settings: list[str]) -> dict[str, str]:
    heads = EVALUATIONS if id == "evaluations" else COLUMNS
    unused = {key for key in ("usd", "alarms") if not any(row.cells[key].text for row in rows)}
    columns = {"name": heads["name"]} | dict(zip(settings, settings, strict=True))
    return columns | {key: head for key, head in heads.items() if key not in unused}


def _row(entry: Entry, settings: Iterable[str]) -> Row:
    run = entry.state
    history, progress = run.progress.history, run.progress
    began = run.info.get("started") or run.info.get("ended") or ""
    alarms, evidence = ", ".join(alarm.name for alarm in run.alarms), "; ".join(alarm.evidence for alarm in run.alarms)
    left = f"{duration(run.left)} left" if run.left is not None else ""
    exact = run.info.get("exact")
    cells = {
        "name": Cell(entry.name, entry.name),
        "status": Cell(run.status, run.status, left),
        "steps": Cell(f"{progress.done} of {progress.max_steps or '?'}", progress.done),
        "latest": Cell(latest(run), history[-1] if history else "", sparkline(history) if history else ""),
        "held_out": _held_out(run),
        "correct": _correct(run),
        "reproducible": Cell()
        if exact is None
        else Cell("yes" if exact else "no", str(exact), "", exactness(run.info)),
        "alarms": Cell(alarms, len(run.alarms), title=evidence),
        "tokens": Cell(thousands(run.spent.tokens) if run.spent.tokens else "", run.spent.tokens),
        "time": Cell(duration(run.seconds), run.seconds),
        "usd": Cell() if run.spent.usd is None else Cell(f"{run.spent.usd:.2f}", run.spent.usd),
        "started": Cell(local_time(began), began),
    }
    for name in settings:
        if (value := run.settings.get(name)) is not None:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            cells[name] = Cell(shortened(value), value if is_number else str(value))
        else:
            cells[name] = Cell()
    words = " ".join([entry.name, run.kind, run.status, run.task or "", run.info["id"], alarms, *run.tags])
    at_work = run.status == "running" and progress.max_steps
    return Row(entry, cells, words.lower(), min(1.0, progress.done / progress.max_steps) if at_work else None)


def _held_out(run: Summary) -> Cell:
    first, last = run.progress.first_evals, run.progress.evals
    for name in ("val/loss", *(f"eval/{env}/reward/mean" for env in environments(list(last)))):
        if (value := last.get(name)) is None:
            continue
        what = "loss " if name == "val/loss" else ""
        interval = reward_interval(last, name.removeprefix("eval/").removesuffix("/reward/mean"))
        note = "" if interval is None else f"95 %: {interval[0]:.3f} to {interval[1]:.3f}"
        before = first.get(name) if first != last else None
        return Cell(what + ("" if before is None else f"{before:.3f} → ") + f"{value:.3f}", value, note)
    return Cell()


def _correct(run: Summary) -> Cell:
    last = run.progress.evals
    for env in environments(list(last)):
        if (value := last.get(f"eval/{env}/correct")) is not None:
            return Cell(percent(value), value, title="of the held-out completions")
    value = run.progress.metrics.get("outcome/correct")
    return Cell() if value is None else Cell(percent(value), value, "in training")
