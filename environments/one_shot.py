"""one-shot: any task, cut to a few of its training examples, which are repeated to fill the batches.

One well-chosen problem, sampled a hundred times a step, teaches a part of what a whole data set does (one-shot RLVR).
The examples keep the prompt, answer, id and grading of their task, and the held-out split is the task's own. Repeated
examples sample differently: a rollout's randomness depends on the draw.

    rl --orchestrator.env.id one-shot --orchestrator.env.args.task gsm8k --orchestrator.env.args.k 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hone.environments
from hone import rng
from hone.environments import Environment
from hone.environments.data import Count
from hone.environments.environment import Split
from hone.errors import UserError


def load_environment(
    task: str = "math-problems",
    k: Count = 1,
    examples: list[int | str] | None = None,
    rows: int = 128,
    seed: int = 0,
    args: dict[str, Any] | None = None,
) -> Environment:
    """`task`, built with `args`, cut to the training `examples`, which are repeated until there are `rows` rows.

    `examples` are row numbers from 0, or examples' ids as rollouts record them; without it, `k` rows drawn by `seed`.
    """
    chosen = examples or []
    if len(set(chosen)) < len(chosen):
        raise UserError(f"one-shot: examples is {examples!r}; name each example once")
    count = len(chosen) or k
    if rows < count:
        raise UserError(f"one-shot: k is {k} and rows is {rows}; rows must be at least {count}")
    if task.replace("_", "-") == "one-shot":
        raise UserError("one-shot: task is one-shot itself; name the task that it is to be made of")
    env = hone.environments.load_environment(task, **(args or {}))
    task_id, env.id = env.id, "one-shot"

    def choose(split: Split) -> list[int]:
        indices = _chosen(split, task_id, k, chosen, seed)
        return [indices[i % len(indices)] for i in range(rows)]

    env.restrict("train", choose)
    return env


def _chosen(split: Split, task_id: str, k: int, chosen: Sequence[int | str], seed: int) -> list[int]:
    """Return the row numbers of the chosen training examples."""
    if not chosen:
        if k > len(split):
            raise UserError(f"one-shot: k is {k}, but {task_id} has {len(split)} training examples; choose fewer")
        return sorted(rng.stream(seed, "one-shot", task_id).choice(len(split), k, replace=False).tolist())
    wanted = {c for c in chosen if isinstance(c, str)}
    found = {example.id: i for i, example in reversed(list(enumerate(split))) if example.id in wanted} if wanted else {}
    for c in chosen:
        if c not in found if isinstance(c, str) else not 0 <= c < len(split):
            raise UserError(f"one-shot: {task_id} has no training example {c!r}; its {len(split)} rows count from 0")
    return [found[c] if isinstance(c, str) else c for c in chosen]
