"""Running reward functions, and deciding what their results mean. Knows nothing of environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hone.grading.inline import (
    GraderFailure,
    Work,
    accepted_names,
    as_reward,
    attempt,
    decide_outcome,
    last_line,
    run_reward,
    together,
)

if TYPE_CHECKING:
    from hone.grading.sandbox import Limits, Ran, Sandbox

__all__ = [
    "GraderFailure",
    "Limits",
    "Ran",
    "Sandbox",
    "Work",
    "accepted_names",
    "as_reward",
    "attempt",
    "decide_outcome",
    "last_line",
    "run_reward",
    "together",
]


def __getattr__(name: str) -> Any:
    if name not in ("Limits", "Ran", "Sandbox"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hone.grading import sandbox

    return getattr(sandbox, name)
