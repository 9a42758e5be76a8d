"""The pages that look through all completions of a run: search, and an example at two steps."""

from __future__ import annotations

import math
from typing import Any

from starlette.datastructures import QueryParams

from hone.errors import UserError
from hone.extensions.viewer import conversation
from hone.extensions.viewer.catalog import NotFound
from hone.extensions.viewer.diff import word_diff
from hone.extensions.viewer.query import CHOICES, PAGE, SORTS, Query
from hone.extensions.viewer.site import Site, whole
from hone.extensions.viewer.store import Hits, Seen, Store
from hone.extensions.viewer.tokens import plain

_AROUND = 130
"""Characters before and after what was found."""


def search(site: Site, query: QueryParams, slug: str) -> str:
    """Show completions that hold words and pass filters."""
    entry = site.catalog.entry(slug)
    wrong, asked, hits = "", Query(), Hits()
    try:
        asked = Query.from_address(query)
        hits = Store(entry.path).search(asked)
    except UserError as error:
        wrong = str(error)
    return site.run_page(
        "search.html",
        entry,
        "search/",
        f"Search in {entry.name}",
        asked=asked,
        query=query,
        wrong=wrong,
        hits=hits,
        excerpts=[_excerpt(row["text"], found) for row, found in zip(hits.rows, hits.found, strict=True)],
        pages=math.ceil(hits.total / PAGE),
        choices=CHOICES,
        sorts={name: words for name, (words, _) in SORTS.items()},
    )


def _excerpt(text: str, found: str) -> tuple[str, str, str]:
    """Return what stands before a hit, the hit, what follows."""
    if not found or (at := text.find(found)) < 0:
        return text[: 2 * _AROUND] + ("…" if len(text) > 2 * _AROUND else ""), "", ""
    before, behind = text[max(0, at - _AROUND) : at], text[at + len(found) :]
    rest = behind[:_AROUND] + ("…" if len(behind) > _AROUND else "")
    return ("…" if at > _AROUND else "") + before, found[:1000], rest if len(found) <= 1000 else "…"


def compare(site: Site, query: QueryParams, slug: str, example: str, before: str, after: str) -> str:
    """Show the completions of an example at two steps, side by side."""
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
    turns = [conversation.turns_of_row(side["row"]) for side in sides]
    texts = ["\n\n".join(t.text if t.policy is not None else f"[{t.role}] {t.text}" for t in side) for side in turns]
    return site.run_page(
        "compare.html",
        entry,
        f"compare/{example}/{before}/{after}/",
        f"Example {example} at steps {a} and {b}",
        b,
        example=example,
        seen=seen,
        sides=sides,
        turns=turns,
        query=query,
        parts=word_diff(*texts) if query.get("diff") == "1" else None,
        skipped=skipped,
        prompt=conversation.turns(conversation.messages_of(sides[0]["row"]["prompt"]), sampled=False),
        plain=plain,
    )


def _side(store: Store, seen: list[Seen], example: str, step: int, which: str) -> dict[str, Any]:
    """Return the completions of the example at a step, and the one that is shown: `which`, or the first."""
    at_step = next((one for one in seen if one.step == step), None)
    if at_step is None:
        steps = ", ".join(str(one.step) for one in seen[:20])
        raise NotFound(f"step {step} has not seen this example: steps {steps} have")
    rows = [row for row in store.rows(step) if row["example_id"] == example]
    if not rows:
        raise NotFound(f"step {step} has just changed: load the page again")
    chosen = next((row for row in rows if str(row["row"]) == which), rows[0])
    return {"step": step, "rows": rows, "row": chosen, "seen": at_step}
