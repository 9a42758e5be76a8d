"""Behaviours that emerge in a run: for each step, the share of completions that show one, and where it is first 1 %.

A marker is a regular expression, so that a million completions are looked through in seconds. It is a hint where to
look, not a judgement: "wait" in a story is no self-correction.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hone.extensions.viewer.store import Store, scan

PHRASES = (
    "wait",
    "hold on",
    "actually",
    "hmm",
    "let me check",
    "let me re-?(?:check|think|read|do|consider|try|compute|calculate)\\w*",
    "let(?:'s| us| me) (?:correct|verify|double[- ]check|try again|start over)",
    "double[- ]check\\w*",
    "mistake\\w*",
    "that(?:'s| is) (?:not right|wrong|incorrect)",
    "on second thought",
)
"""Phrases of self-correction, as regular expressions, whole words, in any case."""
THRESHOLD = 0.01
"""The share of a step's completions from which a page names the first step that shows a behaviour."""
_SECONDS = 30.0


@dataclass(frozen=True)
class Marker:
    """A behaviour: a completion shows it if its text matches `pattern`, and `condition` in SQL holds."""

    name: str
    title: str
    pattern: str
    condition: str = "true"


_SCRIPTS = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Cyrillic}\p{Arabic}\p{Hebrew}\p{Devanagari}\p{Thai}]"
MARKERS = (
    Marker("correction", "corrects itself", rf"\b(?:{'|'.join(PHRASES)})\b"),
    Marker("drafts", "several answers", r"(?s)<answer>.*<answer>"),
    Marker("mixed", "mixes scripts", _SCRIPTS, "strlen(text) <> length(text) AND regexp_matches(text, '[A-Za-z]')"),
    Marker("non_ascii", "characters outside of ASCII", r"[^\x00-\x7F]"),
)


@dataclass(frozen=True)
class Emergence:
    """A marker over the steps: shares `[S]`, the first step at or above the threshold, the highest share and its step.

    Either is None if there is none.
    """

    marker: Marker
    shares: np.ndarray
    begins: int | None
    highest: tuple[int, float] | None

    @property
    def top(self) -> float:
        """The upper end of its picture."""
        return max(0.02, self.highest[1] if self.highest else 0.0)


@dataclass(frozen=True)
class Behaviours:
    """Markers over steps `[S]`, and what could not be read."""

    steps: np.ndarray
    completions: int
    found: list[Emergence]
    skipped: list[str]


def behaviours(store: Store) -> Behaviours:
    """Return what emerges in a run."""
    table, skipped = _counts(tuple(store.stamps().items()))
    steps, completions = table[:, 0], table[:, 1]
    found = []
    for marker, shown in zip(MARKERS, table[:, 2:].T, strict=True):
        shares = shown / np.maximum(completions, 1)
        passed = steps[shares >= THRESHOLD].tolist()
        highest = (int(steps[shares.argmax()]), float(shares.max())) if shown.any() else None
        found.append(Emergence(marker, shares, passed[0] if passed else None, highest))
    return Behaviours(steps, int(completions.sum()), found, skipped)


@lru_cache(maxsize=4)
def _counts(files: tuple[Any, ...]) -> tuple[np.ndarray, list[str]]:
    """Return for each step in these files its number, its completions, and how many show each marker `[S, 2 + M]`."""
    shows = ", ".join(
        f"count(*) FILTER ({one.condition} AND regexp_matches(text, ${one.name}, 'i')) AS {one.name}" for one in MARKERS
    )
    sql = f"SELECT step, count(*) AS n, {shows} FROM read_parquet($files) GROUP BY step ORDER BY step"
    patterns = {marker.name: marker.pattern for marker in MARKERS}
    columns, skipped = scan(sql, patterns, dict(files), _SECONDS)
    return np.array([*columns.values()], dtype=int).reshape(2 + len(MARKERS), -1).T, skipped
