"""The table of runs: what it shows of each, and by what it is sorted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from hone.runs.progress import duration, percent, reward_interval, thousands
from hone.runs.summary import local_time
from hone.runs.verdicts import exactness
from hone.runs.words import latest
from hone.viewer.catalog import Entry
from hone.viewer.charts import environments, sparkline
from hone.viewer.state import RunState

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


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, a note below it, and by what it is sorted."""

    text: str = ""
    sort: str | float = ""
    note: str = ""
    title: str = ""


@dataclass(frozen=True)
class Row:
    """A run in the table, with its cells by column."""

    entry: Entry
    kind: str
    status: str
    evaluation: bool
    cells: dict[str, Cell]
    spark: Markup | str = ""
    words: str = ""
    """What the filter looks in."""
    share: float | None = field(default=None)
    """How far a run at work is, from 0 to 1."""
    damage: Sequence[str] = ()
    """What of it is damaged, in sentences."""


OF_EVALUATIONS = {
    "name": "evaluation",
    "status": "status",
    "held_out": "reward",
    "correct": "correct",
    "time": "time",
    "usd": "USD",
    "started": "started",
}
"""The same of a table of runs of `hone eval`."""


def columns(rows: list[Row], heads: dict[str, str] = COLUMNS) -> dict[str, str]:
    """The columns of a table of these runs: those of prices and alarms only where one has some."""
    empty = {key for key in ("usd", "alarms") if not any(row.cells[key].text for row in rows)}
    return {key: head for key, head in heads.items() if key not in empty}


def row(entry: Entry, damage: Sequence[str] = ()) -> Row:
    """The row of a run that can be shown; `damage` is what of it can't."""
    run = entry.summary
    assert run is not None
    history, progress = run.progress.history, run.progress
    evaluation = run.kind == "eval"
    began = run.info.get("started") or run.info.get("ended") or ""
    cells = {
        "status": _status(run, damage),
        "steps": Cell() if evaluation else Cell(f"{progress.done} of {progress.max_steps or '?'}", progress.done),
        "latest": Cell(latest(run), history[-1] if history else ""),
        "held_out": _held_out(run),
        "correct": _correct(run),
        "exact": _exact(run),
        "alarms": Cell(
            ", ".join(str(alarm.get("name")) for alarm in run.alarms),
            len(run.alarms),
            title="; ".join(str(alarm.get("evidence")) for alarm in run.alarms),
        ),
        "tokens": Cell(thousands(run.spent.tokens) if run.spent.tokens else "", run.spent.tokens),
        "time": Cell(duration(run.seconds), run.seconds),
        "usd": Cell("" if run.spent.usd is None else f"{run.spent.usd:.2f}", run.spent.usd or 0.0),
        "started": Cell(local_time(began), began),
    }
    said = [cells["alarms"].text, *(["damaged"] if damage else [])]
    words = " ".join([entry.name, run.kind, run.status, run.task or "", run.info["id"], *said])
    at_work = run.status == "running" and progress.max_steps
    return Row(
        entry=entry,
        kind=run.kind,
        status=run.status,
        evaluation=evaluation,
        cells=cells,
        spark=sparkline(history) if history else "",
        words=words.lower(),
        share=min(1.0, progress.done / progress.max_steps) if at_work else None,
        damage=damage,
    )


def _status(run: RunState, damage: Sequence[str]) -> Cell:
    if damage:
        return Cell(run.status, run.status, "damaged", "; ".join(damage))
    return Cell(run.status, run.status, f"{duration(run.left)} left" if run.left is not None else "")


def _held_out(run: RunState) -> Cell:
    """The first and the last evaluation, with the last one's 95 % interval."""
    first, last = run.first_evals or run.progress.evals, run.progress.evals
    if (loss := last.get("val/loss")) is not None:
        return _before_after(first.get("val/loss"), loss, "loss ", "", run)
    for env in environments(list(last)):
        name = f"eval/{env}/reward/mean"
        interval = reward_interval(last, env)
        note = "" if interval is None else f"95 %: {interval[0]:.3f} to {interval[1]:.3f}"
        if (value := last.get(name)) is not None:
            return _before_after(first.get(name), value, "", note, run)
    return Cell()


def _before_after(before: float | None, after: float, what: str, note: str, run: RunState) -> Cell:
    several = before is not None and run.kind != "eval" and run.first_evals != run.progress.evals
    return Cell(f"{what}{before:.3f} → {after:.3f}" if several else f"{what}{after:.3f}", after, note)


def _correct(run: RunState) -> Cell:
    """Share of the held-out completions that are correct; without any, of the last step's."""
    last = run.progress.evals
    for env in environments(list(last)):
        if (value := last.get(f"eval/{env}/exact")) is not None:
            return Cell(percent(value), value, title="of the held-out completions")
    value = run.progress.metrics.get("outcome/correct")
    return Cell() if value is None else Cell(percent(value), value, "in training")


def _exact(run: RunState) -> Cell:
    if "exact" not in run.info:
        return Cell()
    return Cell("yes" if run.info["exact"] else "no", str(run.info["exact"]), title=exactness(run.info))


def facts(entry: Entry, run: RunState, damage: Sequence[str] = ()) -> dict[str, Any]:
    """How a run stands, as JSON; `damage` as in `row`."""
    progress = run.progress
    return {
        "slug": entry.slug,
        "name": entry.name,
        "path": str(entry.path),
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
        "damage": "; ".join(damage),
        "started": run.info.get("started"),
        "ended": run.info.get("ended"),
    }
