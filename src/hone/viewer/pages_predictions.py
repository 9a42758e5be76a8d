"""The page of predictions: what the user expected of all runs, and how well the said probabilities hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hone.runs.predictions import word
from hone.viewer.predictions import calibration, decided, found, overall
from hone.viewer.site import Site


def predictions(site: Site, query: Mapping[str, str]) -> str:
    """All predictions, the newest first, with their scores and the calibration of those that are decided."""
    rows, left_out = found(site.catalog.root)
    slugs = {entry.path: entry for entry in site.catalog.entries()}
    known = decided(rows)
    scored = [row.scored for row in known]
    return site.page(
        "predictions.html",
        "predictions/",
        "Predictions",
        rows=[(slugs.get(row.run), row, word(row.scored.outcome)) for row in reversed(rows)],
        left_out=left_out,
        known=len(known),
        score=overall(scored) if known else None,
        bins=calibration(scored),
        furthest=max(known, key=lambda row: row.scored.brier or 0.0) if known else None,
    )


PAGES: dict[str, Any] = {"/predictions/": predictions}
