"""Tasks of several turns: the model writes, the environment answers, until the conversation is over."""

from __future__ import annotations

from typing import Any

from hone.environments.environment import Environment
from hone.errors import UserError
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

    def check_rollouts(self) -> None:
        raise UserError(
            f"environment {self.id!r} is a conversation of several turns, which can be graded but not sampled yet: "
            "take a task of a single turn"
        )
