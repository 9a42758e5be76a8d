"""Rollouts with a model behind a URL that answers in text. Rollouts don't wait for each other.

    server = TextServer(client, "Qwen/Qwen3-0.6B", seed=0, body_of=body_of)
    rollout = await attempt(env, TextModel(driver, 0, example, (0, 0), server))

The server counts tokens, and a conversation that exceeds its context is truncated. Tool calls are read from the
server's `tool_calls` or, if there are none, from the text. A program's requests go to the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hone import rng
from hone.environments import Environment
from hone.environments.driver import Driver, Model, NoRoom, Tools, Turn, rolled_out
from hone.evaluation.client import ChatClient, Failure
from hone.evaluation.result import Place
from hone.inference.conversations import behind_prompt
from hone.model.texts import same_messages
from hone.model.tool_calls import FORMATS, HERMES, tool_calls
from hone.types import Example, Message, Rollout, Usage


@dataclass
class TextServer:
    """The model `name` behind `client`; `seed` is for random choices of environments.

    `body_of(place, number)` returns a request without model, messages and tools. `number` counts a rollout's calls.
    """

    client: ChatClient
    name: str
    seed: int
    body_of: Callable[[Place, int], dict[str, Any]]
    more: dict[str, Any] = field(default_factory=dict)
    """Further keys for requests with tools."""


async def attempt(env: Environment, model: TextModel) -> Rollout | Failure:
    try:
        rollout = await rolled_out(env, model, Failure)
    except Failure as failure:
        return failure
    # A program fails that does not get an answer.
    return Failure(model.lost) if rollout.failure is not None and model.lost else rollout


class TextModel(Model):
    """The model of one rollout. Used in the driver's event loop."""

    def __init__(self, driver: Driver, index: int, example: Example, place: Place, server: TextServer) -> None:
        super().__init__(driver, index, example, "0-{}-{}".format(*place))
        self.place, self.server, self.lost = place, server, ""
        self.replies: list[tuple[str, Rollout]] = []
        """(Session, conversation with the answer) of each call."""
        self._has_room = True
        self._told: list[Message] = []
        """The last conversation as the server knows it, without calls parsed from text."""

    def key(self, *purpose: str | int) -> int:
        return rng.key(self.server.seed, "eval", 0, *self.place, *purpose)

    async def sample(self, messages: list[Message], tools: Tools = None) -> Turn:
        known = self.replies[-1][1].messages if self.replies else []
        told = [*self._told, *messages[len(known) :]] if messages[: len(known)] == known else messages
        self.asked += 1
        reply = await self._complete(told, tools, self.server.body_of(self.place, self.asked - 1))
        if isinstance(reply, Failure):
            if self.replies and reply.reason.startswith("status 4") and "context" in reply.reason:
                self._has_room = False
                raise NoRoom(reply.reason)
            raise reply
        self._told, message = reply.messages, _with_calls(reply.messages[-1], tools)
        self.replies.append(("", replace(reply, messages=[*messages, message])))
        return Turn(message, reply.stop_reason)

    async def _complete(self, messages: list[Message], tools: Tools, body: dict[str, Any]) -> Rollout | Failure:
        """Request an answer. If the server refuses tools (can't parse calls), send tool_choice "none" from then on."""
        server = self.server
        offered = {"tools": tools, **server.more} if tools else {}
        reply = await server.client.complete(server.name, messages, offered | body, self.sample_id)
        refused = isinstance(reply, Failure) and "tool-choice" in reply.reason.replace(" ", "-").lower()
        if not refused or not offered or "tool_choice" in offered:
            return reply
        server.more["tool_choice"] = "none"
        return await self._complete(messages, tools, body)

    def rollout(self, turn_rewards: Sequence[float] | None = None) -> Rollout:
        replies, prompt = [reply for _, reply in self.replies], self.example.prompt
        first = replies[0] if replies else Rollout(self.sample_id, prompt, "stop")
        for reply in replies[1:]:
            length = len(first.messages)
            if len(reply.messages) > length and same_messages(reply.messages[:length], first.messages):
                first = reply
        stop_reason = first.stop_reason if self._has_room else "length"
        messages = behind_prompt(first.messages, prompt)
        return replace(first, messages=messages, stop_reason=stop_reason, usage=_usage(replies))


def _with_calls(message: Message, tools: Tools) -> Message:
    if "tool_calls" in message or not tools:
        return message
    # The server does not tell the model's form of calls: the right one is the form that can be read.
    read = [tool_calls(message["content"], form, tools) for form in (HERMES, *FORMATS)]
    calls = next((calls for calls in read if any(call["function"]["name"] for call in calls)), read[0])
    return message | {"tool_calls": calls} if calls else message


def _usage(replies: Sequence[Rollout]) -> Usage:
    counts, seconds = [reply.completion_tokens for reply in replies], [r.usage.seconds for r in replies if r.usage]
    total = None if None in counts else sum(count or 0 for count in counts)
    return Usage(replies[0].prompt_tokens if replies else None, total, max(1, len(replies)), sum(seconds))
