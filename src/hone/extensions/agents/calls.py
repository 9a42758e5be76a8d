"""A program's calls of the model, and the answers.

A call is a request in OpenAI's format (`hone.extensions.agents.host`). It is sampled with the run's settings and a
separate random key, within the rollout's limits.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hone.environments.driver import Model, NoRoom, Tools
from hone.errors import UserError
from hone.extensions.agents.rewards import AgentLimits
from hone.extensions.server.http import MAX_BODY, apart, too_large, usage
from hone.extensions.server.protocol import ApiError, ChatRequest
from hone.model.texts import same_messages
from hone.types import Message, Segment

if TYPE_CHECKING:
    from hone.inference.conversations import Call, IdsModel

ROLLOUT_ENDED = "this rollout has ended: its key takes no more calls"
LONGEST_TOKEN = 16
"""Maximum characters per token on average. A longer prompt can't fit into seq_len, and is not tokenised."""
Reply = tuple[str, Message, str, dict[str, int]]
"""The id, message, finish reason and usage of an answer."""


class ModelCalls:
    """The calls of one rollout, and its limits. Used on the driver's event loop."""

    largest_body = MAX_BODY
    """Maximum bytes of a request."""

    def __init__(self, model: Model, limits: AgentLimits) -> None:
        self.model, self.limits = model, limits
        self.api_key = f"hone-{model.sample_id}-{secrets.token_hex(16)}"  # no other program can guess it
        self.sampled = self.refused = 0
        self.limit = ""
        """The limit, in words, that a refused call exceeds."""
        self.closed = False
        self.entering = asyncio.Lock()
        """Held while a call starts, so that calls start in the order of their arrival."""

    async def url(self) -> str:
        return await self._host.url()

    def client(self) -> Any:
        return self._host.client(self.api_key)

    async def begin(self, body: ChatRequest, session: str, again: bool) -> Coroutine[Any, Any, Reply]:
        """Start a call or, for a retry (`again`), find the first try. Return an awaitable answer. Raises ApiError."""
        raise NotImplementedError

    def close(self, untrained: frozenset[str]) -> int:
        """End the rollout: drop calls of sessions in `untrained`, and return the number of answered calls left."""
        raise NotImplementedError

    def check_open(self) -> None:
        """Raise ApiError if the rollout takes no more calls. Refused calls count as calls."""
        if self.closed:
            raise ApiError(410, ROLLOUT_ENDED)
        asked = self.model.asked
        if (reached := self.limits.reached(asked, self.sampled)) is not None:
            raise self._limit_reached(reached)
        if asked + self.refused >= self.limits.max_calls:  # the program's fault
            made = f"the rollout has made its {self.limits.max_calls} calls (max_calls)"
            raise ApiError(400, f"{made}, of which {self.refused} were refused", "messages")

    def too_large(self) -> ApiError:
        return too_large()

    def most(self, *bounds: int | None) -> int | None:
        """Return the token limit of a call: the smallest of `bounds` and the remaining `max_tokens`."""
        left = None if self.limits.max_tokens is None else self.limits.max_tokens - self.sampled
        return min((x for x in (left, *bounds) if x is not None), default=None)

    def _limit_reached(self, words: str) -> ApiError:
        self.limit = words
        return ApiError(400, words, "messages", "context_length_exceeded")

    @property
    def _host(self) -> Any:
        from hone.extensions.agents.host import host_of

        return host_of(self.model.driver, self)


class ProgramCalls(ModelCalls):
    """One program's calls of a model that samples token ids."""

    def __init__(self, model: IdsModel, limits: AgentLimits) -> None:
        super().__init__(model, limits)
        self.model: IdsModel = model
        self.longest_prompt = LONGEST_TOKEN * model.settings.seq_len
        self.largest_body = min(MAX_BODY, 12 * self.longest_prompt + 2**20)  # JSON may take 12 bytes for a character

    def too_large(self) -> ApiError:
        words = f"the conversation has more than {self.longest_prompt:,} characters, seq_len is"
        return self._limit_reached(f"{words} {self.model.settings.seq_len} tokens")

    async def begin(self, body: ChatRequest, session: str, again: bool) -> Coroutine[Any, Any, Reply]:
        if again and (known := self._repeated(body)):
            return _answered(known)
        self.check_open()
        model, settings = self.model, self.model.settings
        refuse_other_sampling(body, {name: getattr(model.sampling, name) for name in SAMPLING_FIELDS})
        messages = [message.for_template() for message in body.messages]
        tools = (body.tools or None) if body.tool_choice != "none" else None
        if (size := len(json.dumps([messages, tools], ensure_ascii=False))) > self.longest_prompt:
            raise self.too_large()
        settings.renderer.note(f"a call of rollout {model.sample_id}", messages, tools)
        parent = model.parent_of(messages, tools, session)
        ids, parent = await apart(None, size, lambda: self._prompt(messages, tools, parent))
        self.check_open()  # the program may have ended meanwhile
        most = self.most(body.max_completion_tokens or body.max_tokens)
        try:
            call = model.begin(messages, tools, ids, parent, most, session=session, stops=tuple(body.stop or ()))
        except NoRoom as error:
            raise self._limit_reached(str(error)) from None
        # Concurrent calls share the remaining tokens; `_commit` returns unused ones.
        self.sampled += call.request.max_tokens
        return self._answer(call)

    async def _answer(self, call: Call) -> Reply:
        try:
            self._commit(call, await call.future)
        finally:
            self._drop(call)  # does nothing once it is recorded
        return await _answered(call)

    def _repeated(self, body: ChatRequest) -> Call | None:
        """Return the answered call that a client repeats because it lost the answer; None for a new call."""
        messages = [message.for_template() for message in body.messages]
        answered = [c for c in self.model.calls if c.turn is not None and not c.continued]
        found = [call for call in answered if same_messages(call.request.messages, messages)]
        return found[-1] if found and not self.closed else None

    def _commit(self, call: Call, turn: Segment) -> None:
        if self.closed:
            raise ApiError(410, ROLLOUT_ENDED)
        self.sampled += turn.num_sampled - call.request.max_tokens
        call.turn, call.full = turn, self.model.message(call, turn)
        renderer, text = self.model.settings.renderer, call.full["content"]
        calls = call.full.get("tool_calls", []) if call.tools and not turn.truncated else []
        if not all(one["function"]["name"] for one in calls):
            calls = []
        text = (renderer.before_calls(text) if calls else text).removeprefix(renderer.opened_by_template)
        call.reply = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})

    def _drop(self, call: Call) -> None:
        """Remove an unanswered call, so that it isn't trained: the client left, or hone refused the call."""
        if call.turn is None and call in self.model.calls:
            self.model.calls.remove(call)
            self.sampled -= call.request.max_tokens
            if call.parent is not None:
                call.parent.continued = False

    def close(self, untrained: frozenset[str]) -> int:
        """End the rollout: answer open calls with 410 and drop them; also drop calls of sessions in `untrained`."""
        self.closed = True
        for call in [call for call in self.model.calls if call.turn is None]:
            if not call.future.done():
                call.future.set_exception(ApiError(410, ROLLOUT_ENDED))
                call.future.exception()  # else asyncio reports it if nobody waits
            self._drop(call)
        self.model.calls = [call for call in self.model.calls if call.session not in untrained]
        return len(self.model.calls)

    def _prompt(self, messages: list[Message], tools: Tools, parent: Call | None) -> tuple[Sequence[int], Call | None]:
        try:
            return self.model.prompt(messages, tools, parent)
        except UserError as error:
            if parent is None:
                raise ApiError(400, str(error), "messages") from error
            return self._prompt(messages, tools, None)  # the template rewrites earlier turns: start anew


async def _answered(call: Call) -> Reply:
    assert call.turn is not None
    used = usage(len(call.request.prompt_ids), call.turn.num_sampled)
    return f"{call.request.sample_id}-{call.request.turn}", call.reply, call.turn.stop_reason, used


SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p")


def refuse_other_sampling(body: ChatRequest, sampling: Mapping[str, Any]) -> None:
    """Raise ApiError if a request differs from the run's `sampling`, or sets other options that the run decides."""
    asked = {"n": body.n != 1, "logprobs": bool(body.logprobs), "top_logprobs": bool(body.top_logprobs)}
    asked |= {name: getattr(body, name) not in (None, value) for name, value in sampling.items()}
    asked |= {name: getattr(body, name) is not None for name in ("seed", "key")}
    asked |= {name: bool(getattr(body, name)) for name in ("stop_token_ids", "ignore_eos", "return_kept_ids")}
    asked["return_token_ids"] = body.return_token_ids
    if (wrong := next((name for name, is_asked in asked.items() if is_asked), None)) is not None:
        setting = f", by orchestrator.sampling.{wrong}" if wrong in sampling else ""
        raise ApiError(400, f"{wrong} is the run's to set while it trains{setting}: leave it out", wrong)


class AgentRequest(ChatRequest):
    """A program's request. Its `tool_choice` may name a tool, but the model still decides."""

    tool_choice: Any = None
