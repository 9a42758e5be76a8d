"""The page that compares runs: a chart per chosen metric, and the settings that differ."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import QueryParams

from hone.extensions.viewer.runs import differing_settings
from hone.extensions.viewer.series import read_series, to_json
from hone.extensions.viewer.site import Site, names_in
from hone.runs.metrics import METRICS, unit
from hone.runs.summary import environments, shortened

CHOSEN = 3
"""Number of runs to draw if the query names no run."""
_LATER = ("canary/", "time/", "idle/", "queue/", "eval/")
"""Prefixes of metrics that come last in the list of metrics."""


def curves(site: Site, query: QueryParams) -> str:
    """Show the `runs` and `metrics` that the query names (by repeated keys, or values with commas).

    The page's script reads `x` (step, tokens or hours), `smooth` (in steps) and `log` from the query.
    """
    entries = {e.slug: e for e in site.catalog.entries() if e.summary is not None and not e.is_evaluation}
    named = names_in(query, "runs", entries)
    newest = [entry.slug for entry in entries.values() if not entry.previous][:CHOSEN]
    chosen = {slug: entries[slug].state for slug in (named or newest) if slug in entries}
    names: dict[str, None] = {}
    metrics: dict[str, None] = {}
    numbers: dict[str, Any] = {}
    for slug in chosen:
        series = read_series(entries[slug].path)
        names |= dict.fromkeys(series.names)
        wanted = names_in(query, "metrics", series.names) or _usual(series.names)
        metrics |= dict.fromkeys(wanted)
        means = [name.removesuffix("reward/mean") for name in wanted if name.endswith("/reward/mean")]
        ends = [f"{env}ci95/{end}" for env in means for end in ("low", "high")]
        numbers[slug] = to_json(series, [*wanted, *(name for name in ends if name in series.names)])
    return site.page(
        "curves.html",
        "curves/",
        "Curves",
        query=query,
        entries=list(entries.values()),
        chosen=chosen,
        names=sorted(names, key=lambda name: (name not in metrics, name.startswith(_LATER))),
        metrics=list(metrics),
        gone=[slug for slug in named if slug not in entries],
        unknown=[name for name in metrics if name not in names],
        differing=[
            (name, [shortened(run.settings.get(name, "unset")) for run in chosen.values()])
            for name in differing_settings(chosen.values())
        ],
        data={
            "runs": [{"slug": slug, "name": entries[slug].name} for slug in chosen],
            "charts": [
                {"id": name, "title": name, "unit": unit(name), "note": "", "wide": False, "opens": False}
                for name in metrics
                if name in names
            ],
            "numbers": numbers,
            "smooth": 1,
        },
        live=any(run.pid is not None for run in chosen.values()),
        table=[(entries[slug].name, numbers[slug]["series"]) for slug in chosen],
        last=lambda one: next((value for value in reversed(one["y"]) if value is not None), None),
        unit=unit,
    )


def _usual(names: list[str]) -> list[str]:
    held_out = [f"eval/{env}/reward/mean" for env in environments(names)]
    first, *others = [metric.name for metric in METRICS if metric.curve]
    return [name for name in (first, *held_out, *others) if name in names][: 1 + len(held_out)]
