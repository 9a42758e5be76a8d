"""The pages about runs and their curves. Each function is `(site, query, parts of the path) -> HTML`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any

from hone.errors import UserError
from hone.runs.progress import Progress
from hone.runs.reader import Run
from hone.runs.spent import Spent
from hone.runs.summary import describe_event, summarize
from hone.runs.verdicts import settings_in_words
from hone.runs.words import next_commands, typed
from hone.viewer import curves as curves_page
from hone.viewer import evaluated, overview, run_list
from hone.viewer.catalog import Entry
from hone.viewer.charts import Chart, charts
from hone.viewer.damage import damaged_records
from hone.viewer.events import read_events
from hone.viewer.series import Series, to_json
from hone.viewer.site import Site
from hone.viewer.stamps import Stamps, stamps_of
from hone.viewer.state import RunState
from hone.viewer.units import unit

_SOMEWHERE = 10**9
"""A step that no run has: scripts put the one that was clicked in its place."""


def runs(site: Site, query: Mapping[str, str]) -> str:
    """All runs: those that trained in a table, evaluations and earlier runs below."""
    entries = site.catalog.entries()
    rows = [run_list.row(entry, _damage(entry.summary)) for entry in entries if entry.summary is not None]
    evaluations = [row for row in rows if row.evaluation]
    return site.page(
        "runs.html",
        "",
        "Runs",
        rows=[row for row in rows if not row.evaluation and not row.entry.previous],
        previous=[row for row in rows if not row.evaluation and row.entry.previous],
        evaluations=evaluations,
        damaged=[entry for entry in entries if entry.summary is None],
        around=None if entries else site.catalog.around,
        quoted=quote,
        columns=run_list.columns([row for row in rows if not row.evaluation]),
        eval_columns=run_list.columns(evaluations, run_list.OF_EVALUATIONS),
        live=any(row.entry.summary is not None and row.entry.summary.pid is not None for row in rows),
    )


def run(site: Site, query: Mapping[str, str], slug: str) -> str:
    """A run's overview."""
    entry = site.catalog.entry(slug)
    state = entry.summary
    assert state is not None
    curves_page.check(query)
    links = site.links(f"run/{slug}/")
    steps, evals = _recorded(state)
    steps = site.kept(slug, steps)
    with site.series.read(entry.path) as series:
        drawn = charts(series, state.info) if state.kind != "eval" else []
        changes = overview.changes(state, series)
        values = overview.table(series, series.names)
        data = _chart_data(series, drawn)
    damage, predicted = overview.predicted(state)
    events = read_events(entry.path).all
    data |= {
        "markers": [asdict(one) for one in overview.markers(events)],
        "smooth": overview.smoothing(data["series"]),
        "links": {
            "step": links.step(slug, _SOMEWHERE),
            "eval": links.evaluation(slug, _SOMEWHERE),
            "sample": None if site.files else links.sample(slug, _SOMEWHERE, _SOMEWHERE + 1),
            "token": str(_SOMEWHERE),
            "row": str(_SOMEWHERE + 1),
        },
        "steps": steps,
        "evals": evals,
        "live": state.pid is not None,
        "completions": overview.completions(entry.path, steps) if site.files else links.data(slug, "completions.json"),
        "source": None if site.files else links.data(slug, "series.json"),
        "standing": None if site.files else links.data(slug, "state.json"),
        "state": state.status,
    }
    return site.page(
        "run.html",
        f"run/{slug}/",
        entry.name,
        entry=entry,
        run=state,
        headline=overview.headline(state),
        where=overview.where(state),
        changes=changes,
        interval_title=overview.INTERVAL,
        damaged=_damage(state),
        charts=drawn,
        chart_data=data,
        values=values,
        unit=unit,
        evaluated=evaluated.values(state.progress.evals) if state.kind == "eval" else [],
        steps=steps,
        evals=evals,
        command=typed(state.info["command"]),
        next_commands=next_commands(state),
        damage=damage,
        predicted=predicted,
        events=[describe_event(event) for event in events],
        settings=settings_in_words(state),
        config=_text(entry, "config.toml"),
        made_with=overview.made_with(state),
    )


def _damage(state: RunState) -> list[str]:
    """What of a run is damaged, in sentences; of its records nothing while it is at work."""
    records = [] if state.pid is not None else _damaged(state.path, stamps_of(state.path))
    return [*state.damage, *(sentence for sentence in records if sentence not in state.damage)]


@lru_cache(maxsize=1024)
def _damaged(path: Path, stamps: Stamps) -> list[str]:
    """What is damaged; looked for once, for a run of a thousand steps has as many files."""
    return damaged_records(summarize(path, lambda folder, info, steps: (Progress(info["kind"], steps), Spent())))


def _recorded(state: RunState) -> tuple[list[int], list[int]]:
    """Steps whose rollouts are there, and those whose evaluation's samples are."""
    if state.kind != "rl":
        return [], []
    run = Run(state.path)
    return run.rollout_steps(), run.evals()


def _text(entry: Entry, name: str) -> str:
    file = entry.path / name
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _chart_data(series: Series, drawn: list[Chart], after: int | None = None) -> dict[str, Any]:
    stacks = [list(chart.metrics()) for chart in drawn if chart.stack]
    names = dict.fromkeys(name for chart in drawn for name in chart.metrics())
    return {"charts": [chart.spec() for chart in drawn]} | to_json(series, names, after, stacks=stacks)


def series_data(site: Site, query: Mapping[str, str], slug: str) -> dict[str, Any]:
    """Metrics of a run: `names` (several, by default those of its overview), of the steps above `after`.

    `charts=1` adds what the overview draws and says beside them, for one that is open to follow the run.
    """
    entry = site.catalog.entry(slug)
    state = entry.summary
    assert state is not None
    after = _number(query.get("after"))
    with site.series.read(entry.path) as series:
        if "charts" not in query:
            names = curves_page.names_in(query, "names", series.names) or series.names
            unknown = [name for name in names if name not in series.names]
            facts = {"name": entry.name, "live": state.pid is not None, "names": series.names, "unknown": unknown}
            facts["units"] = {name: unit(name) for name in series.names}
            return facts | to_json(series, names, after)
        drawn = charts(series, state.info) if state.kind != "eval" else []
        data = _chart_data(series, drawn, after if query.get("take") == series.take else None)
        changes = overview.changes(state, series)
    steps, evals = _recorded(state)
    return data | {
        "markers": [asdict(one) for one in overview.markers(read_events(entry.path).all)],
        "live": state.pid is not None,
        "state": state.status,
        "text": overview.live_text(state, changes),
        "steps": steps[-1:],
        "evals": evals,
    }


def completions_data(site: Site, query: Mapping[str, str], slug: str) -> dict[str, Any]:
    """Length, reward and outcome of some completions of a run."""
    entry = site.catalog.entry(slug)
    assert entry.summary is not None
    return overview.completions(entry.path, _recorded(entry.summary)[0])


def state_data(site: Site, query: Mapping[str, str], slug: str) -> dict[str, Any]:
    """How a run stands, for scripts."""
    entry = site.catalog.entry(slug)
    assert entry.summary is not None
    return run_list.facts(entry, entry.summary, _damage(entry.summary))


def runs_data(site: Site, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """How all runs stand, for scripts; of one that is damaged why."""
    return [
        run_list.facts(entry, entry.summary, _damage(entry.summary))
        if entry.summary is not None
        else {"slug": entry.slug, "name": entry.name, "path": str(entry.path), "damage": entry.damage}
        for entry in site.catalog.entries()
    ]


def curves(site: Site, query: Mapping[str, str]) -> str:
    """Any metrics of any runs, one chart each."""
    return curves_page.page(site, query)


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise UserError(f"after is {text[:50]!r}, which is no step") from None


PAGES: dict[str, Any] = {"/": runs, "/run/{slug}/": run, "/curves/": curves}
"""By the path of their URL."""
DATA: dict[str, Any] = {
    "/data/runs.json": runs_data,
    "/data/{slug}/series.json": series_data,
    "/data/{slug}/completions.json": completions_data,
    "/data/{slug}/state.json": state_data,
}
"""JSON for scripts: functions as above that return what becomes JSON."""
