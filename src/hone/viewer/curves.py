"""The page of curves: any metrics of any runs, one chart for each metric, all runs in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hone.errors import UserError
from hone.runs import settings
from hone.viewer.catalog import Entry
from hone.viewer.charts import environments
from hone.viewer.series import POINTS, to_json
from hone.viewer.site import Site
from hone.viewer.units import unit

CHOSEN = 3
"""Runs that are drawn if the page is asked for none."""
MOST = 24
"""Runs that are drawn at most."""
AXES = ("step", "tokens", "hours")
"""Against what curves are drawn."""
_LATER = ("canary/", "time/", "idle/", "queue/", "eval/")
_LAST = ("canary/", "time/", "idle/", "queue/")
"""Beginnings of metrics that come later in the list to choose from, and last."""
IN_FILES = (12, 300)
"""Runs, the newest, and points of each metric, that a page among files has: no server can be asked for others."""


def page(site: Site, query: Mapping[str, str]) -> str:
    """The page for a query: `runs` and `metrics`, each several times or with commas; `x`: step, tokens or hours;
    `smooth`, in steps; `log`; `seeds`: runs that differ in their seed only are drawn as their mean.
    """
    entries = [entry for entry in site.catalog.entries() if entry.summary is not None and not entry.is_evaluation]
    by_slug = {entry.slug: entry for entry in entries}
    named = names_in(query, "runs", by_slug)
    asked = [slug for slug in named if slug in by_slug]
    newest = [entry.slug for entry in entries if not entry.previous][:CHOSEN]
    chosen = asked[:MOST] if named else newest
    axis, smooth = check(query)
    drawn = [entry.slug for entry in entries][: IN_FILES[0]] if site.files else chosen
    names: dict[str, None] = {}
    numbers: dict[str, Any] = {}
    metrics: list[str] = []
    usual: dict[str, list[str]] = {}
    for slug in drawn:
        with site.series.read(by_slug[slug].path) as series:
            names |= dict.fromkeys(series.names)
            usual[slug] = _usual(series.names)
            wanted = names_in(query, "metrics", series.names) or usual[slug]
            metrics += [name for name in wanted if slug in chosen and name not in metrics]
            points = IN_FILES[1] if site.files else POINTS
            numbers[slug] = to_json(series, series.names if site.files else wanted, points=points)
    links = site.links("curves/")
    data = {
        "runs": [_run(by_slug[slug], links.data(slug, "series.json")) for slug in (drawn if site.files else by_slug)],
        "numbers": numbers,
        "files": site.files,
        "standing": None if site.files else links.all_data("runs.json"),
        "chosen": chosen,
        "metrics": metrics,
        "usual": usual,
        "units": {name: unit(name) for name in names},
    }
    return site.page(
        "curves.html",
        "curves/",
        "Curves",
        entries=[by_slug[slug] for slug in (drawn if site.files else by_slug)],
        chosen=chosen,
        too_many=len(asked) > MOST,
        most=MOST,
        names=sorted(names, key=lambda name: (name not in metrics, name.startswith(_LATER), name.startswith(_LAST))),
        metrics=metrics,
        axis=axis,
        gone=[slug for slug in named if slug not in by_slug],
        unknown=[name for name in metrics if name not in names] if chosen else [],
        log=query.get("log") == "1",
        seeds=query.get("seeds") == "1",
        smooth=smooth,
        data=data,
        table=[(by_slug[slug].name, numbers[slug]["series"]) for slug in chosen if slug in numbers],
        last=last_value,
        unit=unit,
    )


def _usual(names: list[str]) -> list[str]:
    """The metrics that are drawn if none are named."""
    held_out = [f"eval/{env}/reward/mean" for env in environments(names)]
    return [name for name in ("reward/mean", *held_out, "loss", "val/loss") if name in names][: 1 + len(held_out)]


def _run(entry: Entry, source: str) -> dict[str, Any]:
    assert entry.summary is not None
    return {
        "slug": entry.slug,
        "name": entry.name,
        "source": source,
        "live": entry.summary.pid is not None,
        "seed": entry.summary.info["seed"],
        "config": digest_but_seed(entry.summary.config),
    }


def digest_but_seed(config: Mapping[str, Any]) -> str:
    """The same for runs that differ in nothing that decides their numbers but the seed.

    Of a model in a folder the last two names count: runs of several seeds begin with models in folders of their own.
    """
    flat = {name: value for name, value in settings.flat(config).items() if name != "seed"}
    if isinstance(name := flat.get("model.name"), str):
        flat["model.name"] = "/".join(name.rstrip("/").split("/")[-2:])
    return settings.digest(flat)[:16]


def last_value(one: Mapping[str, Any]) -> float | None:
    """The last value of a metric in the JSON of a series."""
    return next((value for value in reversed(one["y"]) if value is not None), None)


def check(query: Mapping[str, str]) -> tuple[str, int]:
    """Against what curves are drawn, and the steps of their moving mean, at most 101. UserError for what cannot be."""
    axis = query.get("x") or AXES[0]
    if axis not in AXES:
        raise UserError(f"x cannot be {axis[:50]!r}: it is one of {', '.join(AXES)}")
    text = query.get("smooth")
    if text and not (text.isdecimal() and len(text) < 10):
        raise UserError(f"smooth is {text[:50]!r}, which is no number of steps: give 1 (none) to 101")
    return axis, min(101, max(1, int(text or 1)))


def names_in(query: Mapping[str, str], key: str, known: Iterable[str]) -> list[str]:
    """The values of a key that may be given several times, or with commas between them."""
    there = set(known)
    getlist = getattr(query, "getlist", None)
    values: list[str] = getlist(key) if getlist else [query[key]] if key in query else []
    names = (name for value in values for name in ([value] if value in there else value.split(",")))
    return list(dict.fromkeys(filter(None, names)))
