"""Running reward functions, and deciding what their results mean. Knows nothing of environments."""

from hone.grading.inline import GraderFailure, accepted_names, attempt, decide_outcome, run_reward

__all__ = ["GraderFailure", "accepted_names", "attempt", "decide_outcome", "run_reward"]
