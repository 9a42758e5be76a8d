"""A task whose prompts differ in how often any model solves them: from never to always."""

from __future__ import annotations

from hone.environments import Rubric, SingleTurnEnv, inline

LEVELS = (2, 2, 4, 0, 2, 0, 2, 4, 2, 4)
"""Of each prompt, how many quarters of all texts solve it.

With seed 3 the last prompt is the last of the first epoch, and in the middle of the second, whose order is decided
before it is solved.
"""
ROWS = [{"question": f"question {i}", "answer": str(level)} for i, level in enumerate(LEVELS)]


def load_environment(parity: float = 0.1) -> SingleTurnEnv:
    rubric = Rubric([lucky, length], [1.0, parity], correctness=lucky)
    return SingleTurnEnv(rubric=rubric, dataset=ROWS, eval_dataset=ROWS)


@inline
def lucky(completion, answer) -> float:
    """1 for a share of answer / 4 of all texts."""
    return float(sum(map(ord, completion[-1]["content"])) % 4 < int(answer))


@inline
def length(completion) -> float:
    return len(completion[-1]["content"]) % 2 / 1
