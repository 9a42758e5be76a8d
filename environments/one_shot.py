"""one-shot: any task, cut to a few of its training examples, which are repeated to fill the batches.

One well-chosen problem, sampled a hundred times a step, teaches a part of what a whole data set does (one-shot RLVR).
The examples keep the prompt, answer, id and grading of their task, and the held-out split is the task's own. Repeated
examples sample differently: a rollout's randomness depends on the draw.

    rl --orchestrator.env.id one-shot --orchestrator.env.args.task gsm8k --orchestrator.env.args.k 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import hone.environments
from hone import rng
from hone.environments import Environment, MultiTurnEnv
from hone.environments.data import Count, Row, Rows
from hone.environments.environment import Split
from hone.errors import UserError
from hone.grading import GraderFailure
from hone.types import Example, Message, content_hash


class OneShot(Environment):
    """`task` with the training examples that are `chosen`, or with `k` random ones, repeated to `rows` rows."""

    def __init__(self, task: Environment, k: int, chosen: Sequence[int | str], rows: int, seed: int) -> None:
        super().__init__(
            id="one-shot",
            rubric=task.rubric,
            parser=task.parser,
            dataset=lambda: _repeated(task.split("train"), _choose(task, k, chosen, seed), rows),
            eval_dataset=lambda: _repeated(task.split("eval"), range(len(task.split("eval")))),
        )
        self.task, self.tool_schemas = task, task.tool_schemas
        self.answer_is_exact, self.audit_allows = task.answer_is_exact, task.audit_allows

    def use_template(self, columns: Mapping[str, Any], name: str = "template") -> None:
        """Hand the template to the task, whose data set it is for."""
        self.task.use_template(columns, name)

    def digests(self, splits: Sequence[str]) -> dict[str, str]:
        """Return digests of this module together with the task's, and of the examples."""
        found = super().digests(splits)
        return found | {"environment": content_hash([found.get("environment"), self.task.digests([])])}

    def check_rollouts(self) -> None:
        self.task.check_rollouts()

    def reference(self, example: Example) -> str | list[Message]:
        return self.task.reference(example)

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str | list[Message]:
        return self.task.demonstrate(example, rng)


class OneShotConversations(OneShot, MultiTurnEnv):
    """The same of a task of several turns: the environment's part of a conversation is the task's own."""

    task: MultiTurnEnv

    def __init__(self, task: MultiTurnEnv, *args: Any) -> None:
        super().__init__(task, *args)
        self.max_turns = task.max_turns

    def initial_state(self, example: Example, seed: int) -> dict[str, Any]:
        return self.task.initial_state(example, seed)

    def env_response(self, messages: list[Message], state: dict[str, Any]) -> list[Message]:
        return self.task.env_response(messages, state)

    @property
    def responds_inline(self) -> bool:
        return self.task.responds_inline

    @property
    def responds_async(self) -> bool:
        return self.task.responds_async

    def failed_response(self, messages: list[Message], failure: GraderFailure) -> list[Message] | None:
        return self.task.failed_response(messages, failure)


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
    whole = hone.environments.load_environment(task, **(args or {}))
    kind = OneShotConversations if isinstance(whole, MultiTurnEnv) else OneShot
    return kind(whole, k, chosen, rows, seed)  # type: ignore[arg-type]


def _choose(task: Environment, k: int, chosen: Sequence[int | str], seed: int) -> list[int]:
    """Row numbers of the chosen training examples."""
    split = task.split("train")
    if not chosen:
        if k > len(split):
            raise UserError(f"one-shot: k is {k}, but {task.id} has {len(split)} training examples; choose fewer")
        return sorted(rng.stream(seed, "one-shot", task.id).choice(len(split), k, replace=False).tolist())
    wanted = {c for c in chosen if isinstance(c, str)}
    found = {example.id: i for i, example in reversed(list(enumerate(split))) if example.id in wanted} if wanted else {}
    for c in chosen:
        if c not in found if isinstance(c, str) else not 0 <= c < len(split):
            raise UserError(f"one-shot: {task.id} has no training example {c!r}; its {len(split)} rows count from 0")
    return [found[c] if isinstance(c, str) else c for c in chosen]


def _repeated(split: Split, indices: Sequence[int], count: int | None = None) -> Rows:
    """Return the examples at `indices` as rows, over and over until there are `count`."""

    def make(i: int) -> Row:
        example = split[indices[i % len(indices)]]
        return {"prompt": example.prompt, "answer": example.answer, "info": example.info}

    rows = range(count or len(indices))
    return Rows(rows, lambda i: split.where(indices[i % len(indices)]), generated=split.generated, make=make)
