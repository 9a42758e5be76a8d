"""Running reward functions, and deciding what their results mean. Knows nothing of environments."""

from hone.grading.inline import (
    GraderFailure,
    Work,
    accepted_names,
    attempt,
    decide_outcome,
    last_line,
    printable,
    run_reward,
    together,
)
from hone.grading.sandbox import Limits, Ran, Sandbox

__all__ = [
    "GraderFailure",
    "Limits",
    "Ran",
    "Sandbox",
    "Work",
    "accepted_names",
    "attempt",
    "decide_outcome",
    "last_line",
    "printable",
    "run_reward",
    "together",
]
