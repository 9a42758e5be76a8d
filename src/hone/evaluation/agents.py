"""Programs that make rollouts (`hone.environments.agents`) with a model behind a URL: they run as they do in training,
and their calls are passed on to its server.

    answers, retries = run_at_url(env, endpoint, model, {(0, 0): example}, body_of, progress)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from hone.client import Endpoint
from hone.environments.agents import AgentEnv, Rewarded
from hone.errors import UserError
from hone.evaluation.client import ChatClient, Failure
from hone.evaluation.dialogues import usage_of
from hone.inference.server import http
from hone.inference.server.protocol import ApiError, ChatRequest
from hone.orchestrator.agent_host import Host
from hone.orchestrator.agents import (
    NO_CALL,
    SAMPLING_FIELDS,
    Calls,
    api_key,
    behind_prompt,
    refuse_other_sampling,
    same_messages,
    writable,
)
from hone.types import Example, Outcome, Rollout

Place = tuple[int, int]
"""Which example, and which of its rollouts."""
Body = Callable[[Place, int], dict[str, Any]]
"""What the call of this number of a rollout has beside model, messages and tools."""


def run_at_url(
    env: AgentEnv,
    endpoint: Endpoint,
    model: str,
    examples: Mapping[Place, Example],
    body_of: Body,
    progress: Callable[[int, int], None],
) -> tuple[dict[Place, Rollout | Failure], int]:
    """Run the program for each example; return what came of it, and how many requests were tried again.

    A rollout whose program fails after the server did is a Failure. Ctrl-C ends all, and what is done is returned.
    """
    rollouts = [UrlRollout(env, example, place) for place, example in examples.items()]
    host = UrlHost(env, rollouts, endpoint, model, body_of, progress)
    try:
        with host:
            host.waiting_calls()  # There are none: it waits for all to end.
    except KeyboardInterrupt:
        if not any(rollout.calls for rollout in rollouts):
            raise
    if host.refused is not None:
        raise host.refused
    done = [rollout for rollout in rollouts if rollout.is_done]
    return {rollout.place: rollout.answer() for rollout in done}, host.retries


class UrlRollout(Calls):
    """One rollout: the calls of a program, and what was answered. Used on the thread of the programs alone."""

    def __init__(self, env: AgentEnv, example: Example, place: Place) -> None:
        super().__init__()
        self.limits, self.example, self.place = env.agent_limits, example, place
        self.sample_id = "0-{}-{}".format(*place)
        self.api_key = api_key(self.sample_id)
        self.calls: list[tuple[str, Rollout]] = []
        """Who asked, and the conversation with its answer."""
        self.lost = ""
        self.rewarded, self.failure = Rewarded({}), None

    @property
    def is_done(self) -> bool:
        """False for one that Ctrl-C has ended."""
        return self.failure is not None or bool(self.rewarded.scores)

    def begin(self, most: int | None) -> tuple[int, int | None]:
        """Return the number of a call, and the tokens that it may have of `most`. Raises ApiError if there are none."""
        self.check_open()
        left = None if self.limits.max_tokens is None else self.limits.max_tokens - self.sampled
        most = min((x for x in (left, most) if x is not None), default=None)
        self.asked, self.sampled = self.asked + 1, self.sampled + (most or 0)
        return self.asked - 1, most

    def close(self, rewarded: Rewarded, failure: tuple[Outcome, str] | None) -> None:
        """End the rollout."""
        self.closed, self.rewarded = True, rewarded
        self.calls = [(who, reply) for who, reply in self.calls if who not in rewarded.untrained]
        self.failure = writable(rewarded.miscounted(len(self.calls)) or failure)

    def answer(self) -> Rollout | Failure:
        """Return the first conversation of the rollout, as far as it went, with the rewards."""
        if self.failure is not None and self.lost:
            return Failure(self.lost)
        failure, prompt = self.failure, self.example.prompt
        replies = [reply for _, reply in self.calls]
        if failure is None and not replies:
            failure = Outcome.GRADER_ERROR, self.limit or NO_CALL
        first = replies[0] if replies else Rollout(self.sample_id, prompt, "stop")
        for reply in replies[1:]:
            length = len(first.messages)
            if len(reply.messages) > length and same_messages(reply.messages[:length], first.messages):
                first = reply
        state, messages = self.rewarded.state(self.limit, len(replies)), behind_prompt(first.messages, prompt)
        return replace(first, messages=messages, state=state, failure=failure, usage=usage_of(replies))


class UrlHost(Host):
    """Runs the programs, and passes their calls on."""

    def __init__(
        self,
        env: AgentEnv,
        rollouts: list[UrlRollout],
        endpoint: Endpoint,
        model: str,
        body_of: Body,
        progress: Callable[[int, int], None],
    ) -> None:
        super().__init__(env, rollouts)  # type: ignore[arg-type]
        self.endpoint, self.model, self.body_of, self.progress = endpoint, model, body_of, progress
        self.retries, self.ended = 0, 0
        self.refused: UserError | None = None
        """Why no request can succeed."""

    async def _all(self) -> None:
        self._places = asyncio.Semaphore(self.endpoint.concurrency)
        async with ChatClient(self.endpoint) as self._client:
            try:
                await super()._all()
            finally:
                self.retries = self._client.retries

    async def _one(self, rollout: Any, places: asyncio.Semaphore) -> None:
        await super()._one(rollout, places)
        self.ended += 1
        self.progress(self.ended, len(self.rollouts))

    async def _begin(self, request: HttpRequest, rollout: Any, body: ChatRequest) -> Coroutine[Any, Any, Response]:
        more = self.body_of(rollout.place, rollout.asked)
        refuse_other_sampling(body, {name: more[name] for name in SAMPLING_FIELDS if name in more})
        more = {n: value for n in SAMPLING_FIELDS if (value := getattr(body, n)) is not None} | more
        wished = (body.max_completion_tokens or body.max_tokens, more.get("max_tokens"))
        number, most = rollout.begin(min((x for x in wished if x is not None), default=None))
        more = more | ({"max_tokens": most} if most is not None else {})
        stop = more.get("stop") or []
        more = more | ({"stop": [*([stop] if isinstance(stop, str) else stop), *body.stop]} if body.stop else {})
        more = more | ({"tools": body.tools} if body.tools and body.tool_choice != "none" else {})
        who = request.headers.get("x-session-id", "")
        return self._pass_on(rollout, body, number, more, who)

    async def _pass_on(
        self, rollout: UrlRollout, body: ChatRequest, number: int, more: dict[str, Any], who: str
    ) -> Response:
        messages = [message.for_template() for message in body.messages]
        try:
            async with self._places:
                reply = await self._client.complete(self.model, messages, more, rollout.sample_id)
        except UserError as error:
            self.refused = error
            self._main.cancel()
            raise
        if isinstance(reply, Failure):
            rollout.lost = reply.reason
            raise ApiError(502, reply.reason)
        rollout.calls.append((who, reply))
        rollout.sampled += (reply.completion_tokens or 0) - (more.get("max_tokens") or 0)
        head = {"id": f"chatcmpl-{rollout.sample_id}-{number}", "created": 0, "model": body.model or self.model}
        used = http.usage(reply.prompt_tokens or 0, reply.completion_tokens or 0)
        return http.chat_answer(body, head, reply.messages[-1], reply.stop_reason, used)
