"""The run card as a page of `hone view`: of the run as it is now. Nothing is graded for it; what `hone report` measured
is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from hone.runs.summary import certificate_path
from hone.viewer.card.facts import Card, facts_of
from hone.viewer.card.files import RECORD, stored
from hone.viewer.card.page import body
from hone.viewer.catalog import stamps
from hone.viewer.site import Site

_FILES = ("run.json", "config.toml", "metrics.jsonl", "events.jsonl", "hashes.jsonl", "results.jsonl", "evals", RECORD)


def card(site: Site, query: Mapping[str, str], slug: str) -> str:
    """Show the card of a run."""
    entry = site.catalog.entry(slug)
    certificate = certificate_path(entry.path)
    found = _card(entry.path, (stamps(entry.path, _FILES), stamps(certificate.parent, (certificate.name,))))
    return site.run_page("card.html", entry, "card/", f"Card of {entry.name}", card=found, body=body(found))


@lru_cache(maxsize=8)
def _card(path: Path, changed: Any) -> Card:
    """Make the card, once for a state of its run."""
    return facts_of(path, stored)
