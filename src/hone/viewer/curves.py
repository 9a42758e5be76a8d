"""The page of curves: any metrics of any runs, one chart for each metric, all runs in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hone.errors import UserError
from hone.runs import settings
from hone.runs.metrics import METRICS, unit
from hone.viewer.catalog import Entry
from hone.viewer.charts import environments
from hone.viewer.series import to_json
from hone.viewer.site import Site

CHOSEN = 3
"""Runs that are drawn if the page is asked for none."""
MOST = 24
"""Runs that are drawn at most."""
AXES = ("step", "tokens", "hours")
"""Against what curves are drawn."""
_ENDS = ("low", "high")
_LATER = ("canary/", "time/", "idle/", "queue/", "eval/")
"""Beginnings of metrics that come later in the list to choose from."""


def curves(site: Site, query: Mapping[str, str]) -> str:
    """Show the page for a query: `runs` and `metrics`, each several times or with commas; `x`: step, tokens or hours;
    `smooth`, in steps; `log`; `seeds`: runs that differ in their seed only are drawn as their mean.
    """
    entries = {e.slug: e for e in site.catalog.entries() if e.summary is not None and not e.is_evaluation}
    named = names_in(query, "runs", entries)
    asked = [slug for slug in named if slug in entries]
    newest = [entry.slug for entry in entries.values() if not entry.previous][:CHOSEN]
    chosen = asked[:MOST] if named else newest
    smooth = check(query)
    names: dict[str, None] = {}
    metrics: dict[str, None] = {}
    numbers: dict[str, Any] = {}
    for slug in chosen:
        with site.series.read(entries[slug].path) as series:
            names |= dict.fromkeys(series.names)
            wanted = names_in(query, "metrics", series.names) or _usual(series.names)
            metrics |= dict.fromkeys(wanted)
            ends = [f"{name[:-11]}ci95/{end}" for name in wanted if name.endswith("/reward/mean") for end in _ENDS]
            numbers[slug] = to_json(series, [*wanted, *(name for name in ends if name in series.names)])
    return site.page(
        "curves.html",
        "curves/",
        "Curves",
        entries=list(entries.values()),
        chosen=chosen,
        too_many=len(asked) > MOST,
        most=MOST,
        names=sorted(names, key=lambda name: (name not in metrics, name.startswith(_LATER))),
        metrics=list(metrics),
        gone=[slug for slug in named if slug not in entries],
        unknown=[name for name in metrics if name not in names],
        log=query.get("log") == "1",
        seeds=query.get("seeds") == "1",
        data={
            "runs": [_run(entries[slug]) for slug in chosen],
            "charts": [_chart(name) for name in metrics if name in names],
            "numbers": numbers,
            "smooth": smooth,
        },
        live=any(entries[slug].state.pid is not None for slug in chosen),
        table=[(entries[slug].name, numbers[slug]["series"]) for slug in chosen],
        last=lambda one: next((value for value in reversed(one["y"]) if value is not None), None),
        unit=unit,
    )


def _chart(metric: str) -> dict[str, Any]:
    """Return the description of a chart of one metric, as `hone.viewer.charts.Chart` is one."""
    return {"id": metric, "title": metric, "unit": unit(metric), "note": "", "wide": False, "opens": False}


def _usual(names: list[str]) -> list[str]:
    """Return the metrics that are drawn if none are named."""
    held_out = [f"eval/{env}/reward/mean" for env in environments(names)]
    first, *others = [metric.name for metric in METRICS if metric.curve]
    return [name for name in (first, *held_out, *others) if name in names][: 1 + len(held_out)]


def _run(entry: Entry) -> dict[str, Any]:
    return {"slug": entry.slug, "name": entry.name, "config": digest_but_seed(entry.state.config)}


def digest_but_seed(config: Mapping[str, Any]) -> str:
    """Return the same for runs that differ in nothing that decides their numbers but the seed.

    Of a model in a folder the last two names count: runs of several seeds begin with models in folders of their own.
    """
    flat = {name: value for name, value in settings.flat(config).items() if name != "seed"}
    if isinstance(name := flat.get("model.name"), str):
        flat["model.name"] = "/".join(name.rstrip("/").split("/")[-2:])
    return settings.digest(flat)[:16]


def check(query: Mapping[str, str]) -> int:
    """Return the steps of the moving mean of curves, at most 101. UserError for what can be none, or no axis."""
    axis = query.get("x") or AXES[0]
    if axis not in AXES:
        raise UserError(f"x cannot be {axis[:50]!r}: it is one of {', '.join(AXES)}")
    text = query.get("smooth")
    if text and not (text.isdecimal() and len(text) < 10):
        raise UserError(f"smooth is {text[:50]!r}, which is no number of steps: give 1 (none) to 101")
    return min(101, max(1, int(text or 1)))


def names_in(query: Mapping[str, str], key: str, known: Iterable[str]) -> list[str]:
    """Return the values of a key that may be given several times, or with commas between them."""
    there = set(known)
    values: list[str] = getattr(query, "getlist", lambda key: [])(key)
    names = (name for value in values for name in ([value] if value in there else value.split(",")))
    return list(dict.fromkeys(filter(None, names)))
