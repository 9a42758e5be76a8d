"""Behaviours that emerge in a run: for each step, the share of completions that show one, and where it is first 1 %.

A marker is a regular expression or an SQL condition over a completion's text, so that a million completions are looked
through in seconds. It is a hint where to look, not a judgement: "wait" in a story is no self-correction.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from hone.viewer.query import escape
from hone.viewer.store import Stamps, Store, check_patterns

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
_KEPT = 4
_counted: OrderedDict[Any, dict[int, tuple[Any, tuple[float, ...]]]] = OrderedDict()
_lock = threading.Lock()


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


@dataclass(frozen=True)
class Behaviours:
    """Markers over steps `[S]`; `lengths` `[S, 3]`: 10th, 50th, 90th percentile of characters; turning points of the
    smoothed median; what could not be read.
    """

    steps: np.ndarray
    completions: int
    found: list[Emergence]
    lengths: np.ndarray
    turning: list[tuple[int, float]]
    skipped: list[str]


def behaviours(store: Store, phrase: str = "") -> Behaviours:
    """What emerges in a run, with a phrase (words, or a regular expression in slashes) of the user's, if any.

    Files that did not change since are not read again.
    """
    markers = (*MARKERS, *own_marker(phrase))
    counts, skipped = _counts(store, markers, phrase)
    steps = np.array(sorted(counts), dtype=int)
    table = np.array([counts[step] for step in steps]).reshape(len(steps), 4 + len(markers))
    found = [_emergence(store, marker, phrase, steps, table[:, 0], table[:, 4 + i]) for i, marker in enumerate(markers)]
    lengths = table[:, 1:4]
    return Behaviours(steps, int(table[:, 0].sum()), found, lengths, turning_points(steps, lengths[:, 1]), skipped)


def own_marker(phrase: str) -> list[Marker]:
    """A marker for the user's phrase. UserError if it is none."""
    phrase = phrase.strip()
    if not phrase:
        return []
    is_pattern = len(phrase) > 2 and phrase.startswith("/") and phrase.endswith("/")
    pattern = phrase[1:-1] if is_pattern else escape(phrase)
    check_patterns([pattern])
    return [Marker("phrase", phrase, "regexp_matches(text, $phrase, 'i')", pattern)]


def _values(markers: tuple[Marker, ...]) -> dict[str, Any]:
    return {m.name: m.pattern for m in markers if f"${m.name}" in m.condition}


def _counts(store: Store, markers: tuple[Marker, ...], phrase: str) -> tuple[dict[int, tuple[float, ...]], list[str]]:
    """For each step: completions, three percentiles of the length, how many show each marker."""
    stamps = store.stamps()
    key = (str(store.folder), phrase.strip())
    with _lock:
        known = dict(_counted.get(key, {}))
    known = {step: one for step, one in known.items() if stamps.get(step) == one[0]}
    new: Stamps = {step: stamp for step, stamp in stamps.items() if step not in known}
    shows = ", ".join(f"count(*) FILTER ({marker.condition})" for marker in markers)
    sql = (
        f"SELECT step, count(*), quantile_cont(length(text), [0.1, 0.5, 0.9]), {shows} "
        "FROM read_parquet($files) GROUP BY step"
    )
    rows, skipped = store.scan(sql, _values(markers), new, seconds=_SECONDS)
    for step, count, lengths, *shown in rows:
        known[step] = (stamps.get(step), (count, *(lengths or (0, 0, 0)), *shown))
    with _lock:
        _counted[key] = known
        _counted.move_to_end(key)
        while len(_counted) > _KEPT:
            _counted.popitem(last=False)
    return {step: values for step, (_, values) in known.items()}, skipped


def _emergence(
    store: Store, marker: Marker, phrase: str, steps: np.ndarray, completions: np.ndarray, shown: np.ndarray
) -> Emergence:
    shares = shown / np.maximum(completions, 1)
    passed = np.flatnonzero(shares >= THRESHOLD)
    if not len(passed):
        first = np.flatnonzero(shown)[:1]
        highest = (int(steps[shares.argmax()]), float(shares.max())) if len(first) else None
        return Emergence(marker, shares, None, [], highest)
    begins = int(steps[passed[0]])
    sql = (
        "SELECT file_row_number FROM read_parquet($files, file_row_number = true) "
        f"WHERE {marker.condition} ORDER BY 1 LIMIT {EXAMPLES}"
    )
    rows, _ = store.scan(sql, _values((marker,)), store.stamps(begins, begins))
    best = int(shares.argmax())
    return Emergence(marker, shares, begins, [row for (row,) in rows], (int(steps[best]), float(shares[best])))


def turning_points(steps: np.ndarray, lengths: np.ndarray, least: float = 0.15) -> list[tuple[int, float]]:
    """Where the smoothed length turns: steps and lengths of extremes that `least` of the length lies between.

    Begins with the first step and ends with the last.
    """
    if len(steps) < 2:
        return [(int(s), float(v)) for s, v in zip(steps, lengths, strict=True)]
    width = max(1, len(steps) // 20)
    padded = np.pad(lengths, (width // 2, width - 1 - width // 2), mode="edge")
    smooth = np.convolve(padded, np.ones(width) / width, mode="valid")
    points, high, low, direction = [0], 0, 0, 0
    for i, value in enumerate(smooth):
        high = i if value > smooth[high] else high
        low = i if value < smooth[low] else low
        if direction >= 0 and value < smooth[high] * (1 - least):
            points.append(high)
            direction, high, low = -1, i, i
        elif direction <= 0 and value > smooth[low] * (1 + least):
            points.append(low)
            direction, high, low = 1, i, i
    points.append(len(steps) - 1)
    return [(int(steps[i]), float(smooth[i])) for i in dict.fromkeys(points)]
