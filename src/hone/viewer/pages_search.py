"""The pages that look through all completions of a run: search, an example at two steps, behaviours that emerge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from hone.errors import UserError
from hone.viewer import behaviours as emergence
from hone.viewer import conversation
from hone.viewer.blocks import plain
from hone.viewer.catalog import NotFound
from hone.viewer.diff import word_diff
from hone.viewer.frame import run_frame, whole
from hone.viewer.query import CHOICES, PAGE, SORTS, Query, as_term
from hone.viewer.site import Site
from hone.viewer.store import Found, Row, Seen, Store, matches

_AROUND = 130
"""Characters before and after what was found."""


def search(site: Site, query: Mapping[str, str], slug: str) -> str:
    """Completions that hold words and pass filters."""
    entry = site.catalog.entry(slug)
    store = Store(entry.path)
    frame = run_frame(site, entry, store)
    wrong = ""
    asked, found, hits = Query(), Found(0, []), []
    try:
        asked = Query.of(query)
        found = store.search(asked)
        said = [row.get(asked.column) or "" for row in found.rows]
        hits = [_excerpt(text, hit) for text, hit in zip(said, matches(asked, said), strict=True)]
    except UserError as error:
        wrong = str(error)
    return site.page(
        "search.html",
        f"run/{slug}/search/",
        f"Search in {entry.name}",
        **frame,
        asked=asked,
        said={field.name: query.get(field.name, "") for field in fields(Query)},
        wrong=wrong,
        found=found,
        hits=list(zip(found.rows, hits, strict=True)),
        pages=math.ceil(found.total / PAGE),
        choices=CHOICES,
        sorts={name: words for name, (words, _) in SORTS.items()},
        components=components(store, frame["steps"]),
    )


def components(store: Store, steps: list[int]) -> list[str]:
    """Names of the reward's components, as the newest step that can be read has them."""
    for step in reversed(steps[-3:]):
        try:
            rows = store.rows(step, ("components", "weights"))
        except UserError:
            continue
        return list(dict.fromkeys(name for row in rows[:64] for name in (*row["weights"], *row["components"])))
    return []


def _excerpt(text: str, hit: str) -> tuple[str, str, str]:
    """What stands before a hit, the hit, what follows."""
    if not hit or (at := text.find(hit)) < 0:
        return text[: 2 * _AROUND] + ("…" if len(text) > 2 * _AROUND else ""), "", ""
    before = text[max(0, at - _AROUND) : at]
    behind = text[at + len(hit) :]
    rest = behind[:_AROUND] + ("…" if len(behind) > _AROUND else "")
    return ("…" if at > _AROUND else "") + before, hit[:1000], rest if len(hit) <= 1000 else "…"


def compare(site: Site, query: Mapping[str, str], slug: str, example: str, before: str, after: str) -> str:
    """The completions of an example at two steps, side by side."""
    entry = site.catalog.entry(slug)
    store = Store(entry.path)
    a, b = whole("step", before), whole("step", after)
    seen, skipped = store.seen(example)
    if not seen:
        raise NotFound(f"no completion of the example {example[:40]!r} is here")
    if a == b and len(seen) > 1:
        a, b = seen[0].step, seen[-1].step
    sides = [_side(store, seen, example, step, query.get(name, "")) for step, name in ((a, "i"), (b, "j"))]
    if a == b and "j" not in query and len(rows := sides[1]["rows"]) > 1:  # not the same text twice
        sides[1]["row"] = next(row for row in rows if row["row"] != sides[0]["row"]["row"])
    texts = [conversation.of_row(side["row"]) for side in sides]
    parts = word_diff(*(_all(turns) for turns in texts)) if query.get("diff") == "1" else None
    return site.page(
        "compare.html",
        f"run/{slug}/compare/{example}/{before}/{after}/",
        f"Example {example} at steps {a} and {b}",
        **run_frame(site, entry, store, b),
        example=example,
        seen=seen,
        sides=sides,
        turns=texts,
        parts=parts,
        diff=query.get("diff") == "1",
        skipped=skipped,
        prompt=conversation.turns(conversation.messages_of(sides[0]["row"]["prompt"]), sampled=False),
        plain=plain,
    )


def _side(store: Store, seen: list[Seen], example: str, step: int, which: str) -> dict[str, Any]:
    """The completions of the example at a step, and the one that is shown: `which`, or the first."""
    if step not in [one.step for one in seen]:
        steps = ", ".join(str(one.step) for one in seen[:20])
        raise NotFound(f"step {step} has not seen this example: steps {steps} have")
    rows = [row for row in store.rows(step) if row["example_id"] == example]
    if not rows:
        raise NotFound(f"step {step} has just changed: load the page again")
    chosen = next((row for row in rows if str(row["row"]) == which), rows[0])
    return {"step": step, "rows": rows, "row": chosen, **_means(rows)}


def _means(rows: list[Row]) -> dict[str, Any]:
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return {
        "mean": float(np.mean(rewards)) if rewards else None,
        "solved": sum(row["outcome"] == "correct" for row in rows),
    }


def _all(turns: list[conversation.Turn]) -> str:
    return "\n\n".join(turn.text if turn.policy is not None else f"[{turn.role}] {turn.text}" for turn in turns)


def behaviours(site: Site, query: Mapping[str, str], slug: str) -> str:
    """Markers of behaviours over the steps, and the first step that has each in 1 % or more."""
    entry = site.catalog.entry(slug)
    store = Store(entry.path)
    phrase = query.get("phrase", "")[:200]
    wrong, found = "", None
    try:
        found = emergence.behaviours(store, phrase)
    except UserError as error:
        wrong = str(error)
    return site.page(
        "behaviours.html",
        f"run/{slug}/behaviours/",
        f"Behaviours in {entry.name}",
        **run_frame(site, entry, store),
        found=found,
        phrase=phrase,
        wrong=wrong,
        line=lambda values, top: _line(found.steps, values, top) if found else "",
        phrases=emergence.PHRASES,
        threshold=emergence.THRESHOLD,
        searches={
            one.marker.name: Query(q=as_term(one.marker.pattern), sort="oldest")
            for one in (found.found if found else ())
            if one.marker.pattern
        },
        at_step=lambda asked, step: replace(asked, first=step),
        tops=_tops(found) if found else {},
    )


def _tops(found: emergence.Behaviours) -> dict[str, float]:
    """The upper end of each marker's picture."""
    return {one.marker.name: max(0.02, float(one.shares.max()) if len(one.shares) else 0.0) for one in found.found}


def _line(steps: np.ndarray, values: np.ndarray, top: float, width: float = 600, height: float = 60) -> str:
    """The points of an SVG line, in at most 600 places: of several steps in one place the mean."""
    if not len(steps):
        return ""
    span = max(1, int(steps[-1] - steps[0]))
    place = ((steps - steps[0]) * (width - 1) // span).astype(int)
    where, first = np.unique(place, return_index=True)
    means = np.add.reduceat(values, first) / np.diff([*first, len(values)])
    return " ".join(f"{x},{height - height * min(1.0, y / top):.1f}" for x, y in zip(where, means, strict=True))


PAGES: dict[str, Any] = {
    "/run/{slug}/search/": search,
    "/run/{slug}/compare/{example}/{before}/{after}/": compare,
    "/run/{slug}/behaviours/": behaviours,
}
"""By the path of their URL."""
