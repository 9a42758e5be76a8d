"""What differs between two texts: words, and in words that are much alike the characters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_MOST, _FEW = 4000, 400
"""Words of a text that are compared one by one, and those up to which frequent ones begin a match, too: of a text that
says the same again and again, the time would grow with their cube.
"""
_LONG = 200
"""Characters of a changed stretch up to which it is compared by character: of longer ones, equal letters say little."""

Parts = list[tuple[str, bool]]
"""A text in parts, end to end: each with whether the other text lacks it."""


def word_diff(before: str, after: str) -> tuple[Parts, Parts] | None:
    """Return both texts in parts; None if they are too long to be compared."""
    a, b = _WORD.findall(before), _WORD.findall(after)
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    room = min(len(a), len(b)) - start
    end = next((i for i in range(room) if a[-1 - i] != b[-1 - i]), room)
    head, tail = "".join(a[:start]), "".join(a[len(a) - end :])
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    if max(len(a), len(b)) > _MOST:
        return None
    parts: tuple[Parts, Parts] = ([(head, False)] if head else [], [(head, False)] if head else [])
    for was, became, same in _changes(a, b, len(a) > _FEW or len(b) > _FEW):
        inner = [(was, became, same)]
        short = not same and was and became and max(len(was), len(became)) <= _LONG
        if short and SequenceMatcher(None, was, became, autojunk=False).ratio() >= 0.5:
            inner = _changes(was, became, False)
        for old, new, equal in inner:
            parts[0].extend([(old, not equal)] if old else [])
            parts[1].extend([(new, not equal)] if new else [])
    for side in parts:
        side.extend([(tail, False)] if tail else [])
    return parts


def _changes(a: Sequence[str], b: Sequence[str], junk: bool) -> list[tuple[str, str, bool]]:
    """Return stretches of both, end to end, and whether they are the same."""
    codes = SequenceMatcher(None, a, b, autojunk=junk).get_opcodes()
    return [("".join(a[a0:a1]), "".join(b[b0:b1]), kind == "equal") for kind, a0, a1, b0, b1 in codes]
