"""Conversations of a task of several turns in which the model's part is written beforehand."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from hone.environments import Environment, MultiTurnEnv
from hone.environments.multi_turn import Answer, settled
from hone.types import Example, Message, Outcome, Reply

Script = str | Sequence[Message]
"""What the model says: a text, or messages, of which only those of the assistant count."""


def play_many(env: Environment, scripts: Sequence[tuple[Example, Script]]) -> list[Reply]:
    """Has `env` answer the scripts, all in lock-step. A conversation ends where the environment ends it, or the script.

    Of a task of one turn, the first message is the completion.
    """
    played = [_Played(env, example, script) for example, script in scripts]
    live = [one for one in played if one.say()]
    while live:
        assert isinstance(env, MultiTurnEnv)
        answers = _respond(env, [(one.messages, one.state or {}) for one in live])
        for one, answer in zip(live, answers, strict=True):
            one.said, one.state, one.failure = settled(answer, env, one.messages, one.state or {})
        live = [one for one in live if one.failure is None and one.said and one.say()]
    return [one.reply() for one in played]


def _respond(env: MultiTurnEnv, turns: Sequence[tuple[list[Message], dict[str, Any]]]) -> list[Answer]:
    """`env.respond_many`, which is asked once about conversations that are the same so far: a tool may be slow."""
    keys = [json.dumps(turn, sort_keys=True, default=str) for turn in turns]
    asked = dict(zip(keys, turns, strict=True))
    answers = dict(zip(asked, env.respond_many(list(asked.values())), strict=True))
    return [copy.deepcopy(answers[key]) for key in keys]


class _Played:
    def __init__(self, env: Environment, example: Example, script: Script) -> None:
        several = isinstance(env, MultiTurnEnv)
        turns = [{"role": "assistant", "content": script}] if isinstance(script, str) else script
        self.turns = [dict(turn) for turn in turns if turn.get("role") == "assistant"]
        self.most = env.max_turns if isinstance(env, MultiTurnEnv) else 1
        self.messages: list[Message] = [dict(message) for message in example.prompt]
        self.state = env.initial_state(example, seed=0) if isinstance(env, MultiTurnEnv) else None
        self.said: list[Message] = []
        self.failure: tuple[Outcome, str] | None = None
        self.taken = 0
        assert self.turns and (several or len(self.turns) == 1), "a task of one turn takes one message"

    def say(self) -> bool:
        """Says the next turn, if there is one; True if the environment may answer it."""
        if self.taken == len(self.turns):
            return False
        self.messages += [*self.said, self.turns[self.taken]]
        self.said = []
        self.taken += 1
        return self.taken < self.most

    def reply(self) -> Reply:
        return Reply(self.messages, "stop", "audit", turns=self.taken, state=self.state, failure=self.failure)
