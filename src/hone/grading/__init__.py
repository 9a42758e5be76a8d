"""Runs reward functions and decides outcomes. Imports nothing of `hone.environments`."""

from __future__ import annotations

from typing import Any

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

__all__ = [
    "GraderFailure",
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
    from hone.extension import exported

    if (value := exported(f"grading.{name}")) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return value
