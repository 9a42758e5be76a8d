"""Behaviours that emerge in a run: for each step, the share of completions that show one, and where it is first 1 %.

A marker is a regular expression or an SQL condition over a completion's text, so that a million completions are looked
through in seconds. It is a hint where to look, not a judgement: "wait" in a story is no self-correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hone.viewer.query import escape
from hone.viewer.store import Store, check_patterns

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
SELF_CORRECTION = rf"\b(?:{'|'.join(PHRASES)})\b"
SCRIPTS = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Cyrillic}\p{Arabic}\p{Hebrew}\p{Devanagari}\p{Thai}]"
THRESHOLD = 0.01
"""The share of a step's completions from which a page names the first step that shows a behaviour."""
EXAMPLES = 5
_SECONDS = 30.0


@dataclass(frozen=True)
class Marker:
    """A behaviour: `condition` is SQL over `text`, true where a completion shows it; `pattern` finds it by search."""

    name: str
    title: str
    condition: str
    pattern: str = ""


MARKERS = (
    Marker("correction", "corrects itself", "regexp_matches(text, $correction, 'i')", SELF_CORRECTION),
    Marker("drafts", "several answers", "regexp_matches(text, '<answer>.*<answer>', 's')", r"(?s)<answer>.*<answer>"),
    Marker(
        "mixed",
        "mixes scripts",
        f"strlen(text) <> length(text) AND regexp_matches(text, '[A-Za-z]') AND regexp_matches(text, '{SCRIPTS}')",
        SCRIPTS,
    ),
    Marker("non_ascii", "characters outside of ASCII", "strlen(text) <> length(text)", r"[^\x00-\x7F]"),
)
"""Those that are always counted; a phrase of the user's is one more."""


@dataclass(frozen=True)
class Emergence:
    """A marker over the steps: shares `[S]`, and the first step at or above the threshold with examples there."""

    marker: Marker
    shares: np.ndarray
    begins: int | None
    rows: list[int]
    highest: tuple[int, float] | None

    @property
    def top(self) -> float:
        """The upper end of its picture."""
        return max(0.02, float(self.shares.max()) if len(self.shares) else 0.0)


@dataclass(frozen=True)
class Behaviours:
    """Markers over steps `[S]`, and what could not be read."""

    steps: np.ndarray
    completions: int
    found: list[Emergence]
    skipped: list[str]


def behaviours(store: Store, phrase: str = "") -> Behaviours:
    """Return what emerges in a run, with a phrase (words, or a regular expression in slashes) of the user's, if any.

    Raises UserError if the phrase is no expression.
    """
    markers, phrase = MARKERS, phrase.strip()
    if phrase:
        is_pattern = len(phrase) > 2 and phrase.startswith("/") and phrase.endswith("/")
        pattern = phrase[1:-1] if is_pattern else escape(phrase)
        check_patterns([pattern])
        markers = (*MARKERS, Marker("phrase", phrase, "regexp_matches(text, $phrase, 'i')", pattern))
    table, skipped = _counts(store.run.path, tuple(store.stamps().items()), markers)
    steps = table[:, 0]
    found = [_emergence(store, marker, steps, table[:, 1], table[:, 2 + i]) for i, marker in enumerate(markers)]
    return Behaviours(steps, int(table[:, 1].sum()), found, skipped)


def _values(markers: Sequence[Marker]) -> dict[str, Any]:
    return {m.name: m.pattern for m in markers if f"${m.name}" in m.condition}


@lru_cache(maxsize=4)
def _counts(folder: Path, files: tuple[Any, ...], markers: tuple[Marker, ...]) -> tuple[np.ndarray, list[str]]:
    """Return for each step in these files its number, its completions, and how many show each marker `[S, 2 + M]`."""
    shows = ", ".join(f"count(*) FILTER ({marker.condition}) AS {marker.name}" for marker in markers)
    sql = f"SELECT step, count(*) AS n, {shows} FROM read_parquet($files) GROUP BY step ORDER BY step"
    columns, skipped = Store(folder).scan(sql, _values(markers), dict(files), _SECONDS)
    return np.array([*columns.values()], dtype=int).reshape(2 + len(markers), -1).T, skipped


def _emergence(
    store: Store, marker: Marker, steps: np.ndarray, completions: np.ndarray, shown: np.ndarray
) -> Emergence:
    shares = shown / np.maximum(completions, 1)
    passed = np.flatnonzero(shares >= THRESHOLD)
    highest = (int(steps[shares.argmax()]), float(shares.max())) if shown.any() else None
    if not len(passed):
        return Emergence(marker, shares, None, [], highest)
    begins = int(steps[passed[0]])
    sql = (
        "SELECT file_row_number AS row FROM read_parquet($files, file_row_number = true) "
        f"WHERE {marker.condition} ORDER BY 1 LIMIT {EXAMPLES}"
    )
    columns, _ = store.scan(sql, _values([marker]), store.stamps(begins, begins))
    return Emergence(marker, shares, begins, [int(row) for row in columns.get("row", ())], highest)
