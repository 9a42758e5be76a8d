"""Tasks of several turns: the model writes, the environment answers, until the conversation is over."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hone.environments.environment import Environment
from hone.environments.rubric import is_async, is_inline
from hone.errors import UserError
from hone.grading import GraderFailure, Work, attempt, together
from hone.types import Message


class MultiTurnEnv(Environment):
    """A task of at most `max_turns` completions, with messages of the environment between them.

    Whole conversations can be graded; rollouts cannot be made of them yet.
    """

    def __init__(self, *, max_turns: int = 8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if max_turns < 1:
            raise UserError(f"environment {self.id!r}: max_turns is {max_turns}; it must be at least 1")
        self.max_turns = max_turns

    def env_response(self, messages: list[Message], state: dict[str, Any]) -> list[Message]:
        """What the environment says to a conversation that ends with the model; nothing if it is over."""
        raise NotImplementedError

    def respond_many(
        self, turns: Sequence[tuple[list[Message], dict[str, Any]]]
    ) -> list[tuple[list[Message], dict[str, Any]] | GraderFailure]:
        """What the environment says to each conversation (its messages, its state), and its state then; in order.

        `env_response` runs in worker processes, as reward functions do, unless it is marked `inline` or no worker can
        load this environment. An exception in it, or a deadline, is a failure. Neither messages nor state are changed;
        a state that goes to workers must be JSON.
        """
        workers = None if is_inline(self.env_response) else self._processes()
        if workers is None:
            works = [self.responding(messages, state) for messages, state in turns]
            return together(works, self._limits.timeout)
        return workers.respond(turns, is_async(self.env_response))

    def responding(
        self, messages: list[Message], state: dict[str, Any]
    ) -> Work[tuple[list[Message], dict[str, Any]] | GraderFailure]:
        """One turn of `respond_many`, in whatever process this is."""
        messages, state = copy.deepcopy(messages), copy.deepcopy(state)
        said = yield from attempt(self.env_response, messages, state)
        return said if isinstance(said, GraderFailure) else (list(said or []), state)

    def check_rollouts(self) -> None:
        raise UserError(
            f"environment {self.id!r} is a conversation of several turns, which can be graded but not sampled yet: "
            "take a task of a single turn"
        )
