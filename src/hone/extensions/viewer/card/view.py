"""The run card as a page of `hone view`: of the run as it is now. Nothing is graded for it; what `hone report` measured
is shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from hone.extensions.viewer.card.facts import facts_of
from hone.extensions.viewer.card.files import body, stored
from hone.extensions.viewer.site import Site


def card(site: Site, query: Mapping[str, str], slug: str) -> str:
    """Show the card of a run."""
    entry = site.catalog.entry(slug)
    found = facts_of(entry.path, stored)
    return site.run_page("card.html", entry, "card/", f"Card of {entry.name}", card=found, body=body(found))
