"""The page that searches all completions of a run."""

from __future__ import annotations

import math

from starlette.datastructures import QueryParams

from hone.errors import UserError
from hone.extensions.viewer.query import CHOICES, PAGE, SORTS, Query
from hone.extensions.viewer.site import Site
from hone.extensions.viewer.store import Hits, Store

_AROUND = 130
"""Characters before and after a hit."""


def search(site: Site, query: QueryParams, slug: str) -> str:
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
    if not found or (at := text.find(found)) < 0:
        return text[: 2 * _AROUND] + ("…" if len(text) > 2 * _AROUND else ""), "", ""
    before, behind = text[max(0, at - _AROUND) : at], text[at + len(found) :]
    rest = behind[:_AROUND] + ("…" if len(behind) > _AROUND else "")
    return ("…" if at > _AROUND else "") + before, found[:1000], rest if len(found) <= 1000 else "…"
