"""What an alarm found, and what a rule is: a pure function of a run's metrics, one for each alarm of
`hone.config.alarms`.

A rule gets the history of the steps and its threshold, and returns what it found at the last of them, or None. Means
are over windows of steps; a rise or a fall counts only if it is also beyond what the steps scatter by (`SIGMAS`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hone.runs.history import History


@dataclass(frozen=True)
class Finding:
    """What is wrong: the measured `value`, the `threshold` that it passed, the evidence in words, and what to do."""

    value: float
    threshold: float
    evidence: str
    advice: str


Rule = Callable[[History, float], Finding | None]
SOLVED = 0.9
"""Where this share of completions is correct, neither sameness nor low entropy is a worry."""
