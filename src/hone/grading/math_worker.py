"""math-verify, as it runs in a process of its own for `hone.grading.math`; it needs nothing of hone.

Expressions are read by math-verify's LaTeX grammar alone: its reader of plain expressions goes through Python's `eval`
and is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def start() -> Callable[[list[str]], bool | None]:
    """Return the function of `[answer, gold]` that says whether they are equal; None if the answer cannot be read."""
    from math_verify import LatexExtractionConfig, parse, verify

    reading = [LatexExtractionConfig(boxed_match_priority=0)]

    def expressions(text: str) -> list[Any]:
        return parse(f"\\boxed{{{text}}}", reading, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]

    def equal(question: list[str]) -> bool | None:
        answer, gold = question
        given = expressions(answer)
        return verify(expressions(gold), given, timeout_seconds=None) if given else None

    return equal
