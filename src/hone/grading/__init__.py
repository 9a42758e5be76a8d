"""Running reward functions, and deciding what their results mean. Knows nothing of environments."""

from hone.grading.inline import (
    GraderFailure,
    Work,
    accepted_names,
    attempt,
    decide_outcome,
    printable,
    run_reward,
    together,
)

__all__ = [
    "GraderFailure",
    "Work",
    "accepted_names",
    "attempt",
    "decide_outcome",
    "printable",
    "run_reward",
    "together",
]
