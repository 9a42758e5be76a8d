"""What differs between two texts: words, and in words that are much alike the characters."""

from __future__ import annotations

import re
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
    """Both texts in parts; None if they are too long to be compared."""
    a, b = _WORD.findall(before), _WORD.findall(after)
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    room = min(len(a), len(b)) - start
    end = next((i for i in range(room) if a[-1 - i] != b[-1 - i]), room)
    middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
    if max(len(middle_a), len(middle_b)) > _MOST:
        return None
    parts_a: Parts = [("".join(a[:start]), False)]
    parts_b: Parts = [("".join(b[:start]), False)]
    many = len(middle_b) > _FEW or len(middle_a) > _FEW
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, middle_a, middle_b, autojunk=many).get_opcodes():
        was, is_ = "".join(middle_a[a0:a1]), "".join(middle_b[b0:b1])
        in_a, in_b = (
            _characters(was, is_) if kind == "replace" else ([(was, kind != "equal")], [(is_, kind != "equal")])
        )
        parts_a += in_a
        parts_b += in_b
    parts_a.append(("".join(a[len(a) - end :]), False))
    parts_b.append(("".join(b[len(b) - end :]), False))
    return [part for part in parts_a if part[0]], [part for part in parts_b if part[0]]


def _characters(before: str, after: str) -> tuple[Parts, Parts]:
    """Both texts, which differ, by character if at least half of them is the same; each as a whole if not."""
    whole: tuple[Parts, Parts] = ([(before, True)], [(after, True)])
    if max(len(before), len(after)) > _LONG:
        return whole
    found = SequenceMatcher(None, before, after, autojunk=False)
    if found.ratio() < 0.5:
        return whole
    parts_a: Parts = []
    parts_b: Parts = []
    for kind, a0, a1, b0, b1 in found.get_opcodes():
        parts_a.append((before[a0:a1], kind != "equal"))
        parts_b.append((after[b0:b1], kind != "equal"))
    return parts_a, parts_b
