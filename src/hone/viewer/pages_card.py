"""The run card as a page: of the run as it is now. Nothing is graded for it; what `hone report` measured is shown."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hone.viewer.card.facts import Card, facts_of
from hone.viewer.card.files import stored
from hone.viewer.card.page import body
from hone.viewer.frame import run_frame
from hone.viewer.site import Site
from hone.viewer.stamps import Stamps, stamps_of
from hone.viewer.store import Store

_KEPT = 8
"""Cards that are kept: each is computed once for a state of its run."""


def card(site: Site, query: Mapping[str, str], slug: str) -> str:
    """The card of a run."""
    entry = site.catalog.entry(slug)
    found = _card(entry.path, stamps_of(entry.path))
    return site.page(
        "card.html",
        f"run/{slug}/card/",
        f"Card of {entry.name}",
        **run_frame(site, entry, Store(entry.path)),
        card=found,
        body=body(found),
    )


@lru_cache(maxsize=_KEPT)
def _card(path: Path, stamps: Stamps) -> Card:
    return facts_of(path, stored)


PAGES: dict[str, Any] = {"/run/{slug}/card/": card}
"""By the path of their URL."""
