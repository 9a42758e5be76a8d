"""Conversations of several turns with a model behind a URL: each goes on by itself, as fast as its answers come.

    dialogues = Dialogues(client, "Qwen/Qwen3-0.6B", env)
    reply = await dialogues.hold(example, seed, sample_id, body)

Turns and their limits are those of `hone.orchestrator.conversations`, but for tokens, which are the server's to count:
a conversation that has outgrown its context is truncated there. Calls of tools are those that the server reports; where
it reports none they are read from the text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from hone.environments import Environment, MultiTurnEnv
from hone.environments.multi_turn import Answer, settled
from hone.evaluation.client import ChatClient, Failure
from hone.model.tool_calls import FORMATS, HERMES, tool_calls
from hone.types import Example, Message, Rollout, Usage

Body = Callable[[int], dict[str, Any]]
"""What a request has beside model, messages and tools, by the number of the turn (from 0)."""


class Dialogues:
    """Conversations of one environment with one model; of a task of a single turn they end with that."""

    def __init__(self, client: ChatClient, model: str, env: Environment) -> None:
        self.client, self.model, self.env = client, model, env
        self._responder = Responder(env) if isinstance(env, MultiTurnEnv) else None
        self._tools: dict[str, Any] = {"tools": env.tool_schemas} if env.tool_schemas else {}

    async def hold(self, example: Example, seed: int, sample_id: str, body: Body) -> Rollout | Failure:
        """Return the whole conversation; a Failure if a turn of it is not delivered. `seed` is the environment's."""
        env, responder = self.env, self._responder
        state = env.initial_state(example, seed) if isinstance(env, MultiTurnEnv) else None
        messages, sent = list(example.prompt), list(example.prompt)
        replies: list[Rollout] = []
        failure, stop_reason = None, "stop"
        while True:
            reply = await self._complete(list(sent), body(len(replies)), sample_id)
            if isinstance(reply, Failure):
                outgrown = reply.reason.startswith("status 4") and "context" in reply.reason
                if not replies or not outgrown:
                    return reply
                # The answer left no room: the conversation is what came before it.
                while messages[-1]["role"] != "assistant":
                    messages.pop()
                stop_reason = "length"
                break
            replies.append(reply)
            turn, stop_reason = reply.messages[-1], reply.stop_reason
            sent.append(turn)
            messages.append(self._with_calls(turn))
            more = isinstance(env, MultiTurnEnv) and env.has_turn(len(replies), stop_reason)
            if not isinstance(env, MultiTurnEnv) or not (more or env.hears_last):
                break
            assert responder is not None and state is not None
            answers, state, failure = settled(await responder.answer(messages, state), env, messages, state)
            if not answers or not more:
                break
            messages, sent = [*messages, *answers], [*sent, *answers]
        usage = usage_of(replies)
        return Rollout(sample_id, messages, stop_reason, state=state, failure=failure, usage=usage)

    async def _complete(self, messages: list[Message], body: dict[str, Any], sample_id: str) -> Rollout | Failure:
        """Complete them. A server that offers tools but reads no calls (vLLM without a parser) is asked not to."""
        tools = self._tools
        reply = await self.client.complete(self.model, messages, tools | body, sample_id)
        refused = isinstance(reply, Failure) and "tool-choice" in reply.reason.replace(" ", "-").lower()
        if not refused or "tools" not in tools or "tool_choice" in tools:
            return reply
        self._tools = tools | {"tool_choice": "none"}
        return await self._complete(messages, body, sample_id)

    def _with_calls(self, message: Message) -> Message:
        """Return the message with the calls in its text, if the server has not read them."""
        if "tool_calls" in message or not self.env.tool_schemas:
            return message
        # Whose model it is, the server does not tell: the form in which a call can be read is the right one.
        read = [tool_calls(message["content"], form, self.env.tool_schemas) for form in (HERMES, *FORMATS)]
        calls = next((calls for calls in read if any(call["function"]["name"] for call in calls)), read[0])
        return message | {"tool_calls": calls} if calls else message


class Responder:
    """Asks the environment in a thread, one call at a time: all that came while it was busy goes with the next."""

    def __init__(self, env: MultiTurnEnv) -> None:
        self._env = env
        self._waiting: list[tuple[tuple[list[Message], dict[str, Any]], asyncio.Future[Answer]]] = []
        self._busy = asyncio.Lock()

    async def answer(self, messages: list[Message], state: dict[str, Any]) -> Answer:
        """Return the environment's answer to a conversation; raises what `respond_many` raises."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append(((messages, state), future))
        async with self._busy:
            batch, self._waiting = self._waiting, []
            if batch:  # else an earlier call had this one with it
                try:
                    answers = await asyncio.to_thread(self._env.respond_many, [turn for turn, _ in batch])
                except Exception as error:
                    for _, waiting in batch:
                        waiting.set_exception(error)
                else:
                    for (_, waiting), answer in zip(batch, answers, strict=True):
                        waiting.set_result(answer)
        return await future


def usage_of(replies: Sequence[Rollout]) -> Usage:
    """Return the usage of a rollout that these answers are of."""
    counts, seconds = [reply.completion_tokens for reply in replies], [r.usage.seconds for r in replies if r.usage]
    total = None if None in counts else sum(count or 0 for count in counts)
    return Usage(replies[0].prompt_tokens if replies else None, total, max(1, len(replies)), sum(seconds))
