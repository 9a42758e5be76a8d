"""Reads JSON that a model wrote, within bounds of size and depth.

The reader is strict, as servers are. Errors are a raw line break in a string, a repeated key, NaN, a number too large
for a float, and half a surrogate pair. Text longer than `MAX_CHARS`, or nested deeper than `MAX_DEPTH`, is not read.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_CHARS = 1_000_000
MAX_DEPTH = 100


def read_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in `text`; None if `text` isn't a JSON object, or exceeds the bounds."""
    value, end = read_json(text, skip_space(text, 0))
    return value if isinstance(value, dict) and not text[end:].strip() else None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise ValueError(f"the key {twice[:80]!r} is there twice")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits[:40]} is too large")
    return number


DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)
_SPACE = re.compile(r"\s*")


def skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def read_json(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON value that starts at `at`, and where it ends; (None, at) without a valid value in bounds."""
    try:
        value, end = DECODER.raw_decode(text, at)
        if end - at > MAX_CHARS or not shallow(value):
            return None, at
        text[at:end].encode()
        json.dumps(value, ensure_ascii=False).encode()  # an escape may have made half a surrogate pair
    except (ValueError, RecursionError):
        return None, at
    return value, end


def shallow(value: Any) -> bool:
    """Return True if lists and objects are nested at most `MAX_DEPTH` deep."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return True
    return False
