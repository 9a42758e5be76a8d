"""Rollouts that a program makes: it calls the model, and what it was answered is trained on.

    rollouts = run_agents(task, policy, maker, examples, draws, step, sampling)

The programs run on a thread of their own (`hone.orchestrator.agent_host`); this one samples. It takes the calls that
wait, once every program that runs waits for one or none has come for a moment, and samples them together. A call's
randomness is keyed by (seed, purpose, step, draw, sample, number of the call).

A call that begins with the messages of an earlier one and its reply goes on with the ids of that one: only what the
program added is rendered. Any other call begins a new segment of the rollout. A segment is what one line of such calls
has as ids. All segments share the reward of the rollout, or each call has its own.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from hone.environments.agents import AgentEnv, AgentLimits, Rewarded
from hone.errors import Halt, UserError
from hone.inference.server.http import MAX_BODY, apart, too_large
from hone.inference.server.protocol import ApiError, ChatRequest
from hone.inference.types import SamplingParams
from hone.model.texts import composed
from hone.orchestrator.types import Request, Sampler
from hone.redaction import redact
from hone.types import Columns, Example, Message, Outcome, Rollout, Segment, joined, where

if TYPE_CHECKING:
    from hone.orchestrator.conversations import RequestMaker

ROLLOUT_ENDED = "this rollout has ended: its key takes no more calls"
NO_CALL = "the program made no call that was answered"
LONGEST_TOKEN = 16
"""Characters that a token has on average at most: a longer prompt does not fit, and is not tokenised."""


@dataclass(eq=False)
class Call:
    """A call of the model: what was asked, and once it is answered `turn`, as sampled, and `reply`, as it was sent.

    `parent` is the call that it goes on from. Its `future` has the turn, or why there is none.
    """

    rollout: ProgramRollout
    number: int
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    request: Request
    parent: Call | None
    future: asyncio.Future[Segment]
    session: str = ""
    """Who asks, of several in one rollout: the header X-Session-ID."""
    stops: tuple[str, ...] = ()
    """Texts that end this call, beside those of the run."""
    reply: Message = field(default_factory=dict)
    turn: Segment | None = None
    full: Message = field(default_factory=dict)
    """The reply with its thoughts, and its calls as text."""
    continued: bool = False
    """Another call goes on from this one, or is about to."""

    def goes_on_with(self, messages: Sequence[Message], tools: list[dict[str, Any]] | None, session: str) -> bool:
        """Return True if a call of this session with these messages can continue this one."""
        length = len(self.messages)
        return (
            self.turn is not None
            and not self.continued
            and self.session == session
            and self.tools == tools
            and len(messages) > length + 1
            and same_messages(messages[:length], self.messages)
            and same_messages([messages[length]], [self.reply])
        )


class Calls:
    """Counts the calls of one rollout's program."""

    limits: AgentLimits
    largest_body = MAX_BODY
    """Bytes of a call."""

    def __init__(self) -> None:
        self.asked = self.sampled = self.refused = 0
        self.limit = ""
        """The bound that a call was refused for, in words."""
        self.closed = False
        self.entering = asyncio.Lock()
        """Held until a call is begun: calls begin in the order in which they came, and one after another."""

    def check_open(self) -> None:
        """Raise ApiError if the rollout takes no more calls. Calls that were refused count."""
        if self.closed:
            raise ApiError(410, ROLLOUT_ENDED)
        if (reached := self.limits.reached(self.asked, self.sampled)) is not None:
            raise self._limit_reached(reached)
        if self.asked + self.refused >= self.limits.max_calls:  # the program's fault, and not the model's
            made = f"the rollout has made its {self.limits.max_calls} calls (max_calls)"
            raise ApiError(400, f"{made}, of which {self.refused} were refused", "messages")

    def too_large(self) -> ApiError:
        """Return the error of a call with more bytes than `largest_body`."""
        return too_large()

    def _limit_reached(self, words: str) -> ApiError:
        self.limit = words
        return ApiError(400, words, "messages", "context_length_exceeded")


class ProgramRollout(Calls):
    """One sample: the calls of one program. Used on the thread of the programs alone."""

    def __init__(
        self,
        maker: RequestMaker,
        sampling: SamplingParams,
        limits: AgentLimits,
        example: Example,
        key: tuple[int, int, int],
        index: int,
    ) -> None:
        super().__init__()
        self.maker, self.sampling, self.limits, self.example = maker, sampling, limits, example
        self.longest_prompt = LONGEST_TOKEN * maker.seq_len
        self.largest_body = min(MAX_BODY, 12 * self.longest_prompt + 2**20)  # JSON may take 12 bytes for a character
        self.key, self.index = key, index
        self.sample_id = "{}-{}-{}".format(*key)
        self.api_key = api_key(self.sample_id)
        self.calls: list[Call] = []
        self.rewarded = Rewarded({})
        self.failure: tuple[Outcome, str] | None = None

    def too_large(self) -> ApiError:
        return self._limit_reached(
            f"the conversation has more than {self.longest_prompt:,} characters, seq_len is {self.maker.seq_len} tokens"
        )

    async def begin(self, body: ChatRequest, session: str = "") -> Call:
        """Return the call that a request asks for. Raises ApiError if it can't be sampled."""
        self.check_open()
        refuse_other_sampling(body, {name: getattr(self.sampling, name) for name in SAMPLING_FIELDS})
        messages = [message.for_template() for message in body.messages]
        tools = (body.tools or None) if body.tool_choice != "none" else None
        if (size := len(json.dumps([messages, tools], ensure_ascii=False))) > self.longest_prompt:
            raise self.too_large()
        self.maker.renderer.note(f"a call of rollout {self.sample_id}", messages, tools)
        goes_on = [call for call in self.calls if call.goes_on_with(messages, tools, session)]
        parent = max(goes_on, key=lambda call: len(call.messages), default=None)
        ids, continues = await apart(None, size, lambda: self._prompt(messages, tools, parent))
        self.check_open()  # the program may have ended meanwhile
        parent = parent if continues else None
        room = self.maker.limit(len(ids))
        if room < 1:
            raise self._limit_reached(f"the conversation has {len(ids)} tokens, seq_len is {self.maker.seq_len}")
        left = None if self.limits.max_tokens is None else self.limits.max_tokens - self.sampled
        most = min(x for x in (room, left, body.max_completion_tokens or body.max_tokens) if x is not None)
        number, self.asked = self.asked, self.asked + 1
        key = self.maker.key(*self.key, *([number] if number else []))
        request = Request(tuple(ids), messages, key, self.sample_id, most, number)
        if parent is not None:
            parent.continued = True
        future = asyncio.get_running_loop().create_future()
        call = Call(self, number, messages, tools, request, parent, future, session, tuple(body.stop or ()))
        self.sampled += most  # calls side by side share what is left; `commit` gives back what was not used
        self.calls.append(call)
        return call

    def repeated(self, body: ChatRequest) -> Call | None:
        """Return the answered call that a client repeats because its answer was lost; None if there is none."""
        messages = [message.for_template() for message in body.messages]
        answered = [c for c in self.calls if c.turn is not None and not c.continued]
        found = [call for call in answered if same_messages(call.messages, messages)]
        return found[-1] if found and not self.closed else None

    def commit(self, call: Call, turn: Segment) -> None:
        """Record what was sampled for a call, when its program is about to get it."""
        if self.closed:
            raise ApiError(410, ROLLOUT_ENDED)
        prompt = len(call.request.prompt_ids)
        self.sampled += turn.num_sampled - call.request.max_tokens
        maker = replace(self.maker, tools=call.tools)
        sampling = sampled_as(self.sampling, call)
        call.turn, call.full = turn, maker.message(turn.token_ids[prompt:].tolist(), sampling)
        opened, text = self.maker.renderer.opened_by_template, call.full["content"]
        calls = call.full.get("tool_calls", []) if call.tools and not turn.truncated else []
        if not all(one["function"]["name"] for one in calls):
            calls = []
        text = (self.maker.renderer.before_calls(text) if calls else text).removeprefix(opened)
        call.reply = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})

    def drop(self, call: Call) -> None:
        """Remove a call without an answer, which the program did not wait for or hone refused; it trains nothing."""
        if call.turn is None and call in self.calls:
            self.calls.remove(call)
            self.sampled -= call.request.max_tokens
            if call.parent is not None:
                call.parent.continued = False

    def close(self, rewarded: Rewarded, failure: tuple[Outcome, str] | None) -> None:
        """End the rollout; calls without an answer get a 410 and are dropped, and so are those that don't train."""
        self.closed, self.rewarded = True, rewarded
        for call in [call for call in self.calls if call.turn is None]:
            if not call.future.done():
                call.future.set_exception(ApiError(410, ROLLOUT_ENDED))
                call.future.exception()  # asyncio would report it where nobody waits any more
            self.drop(call)
        self.calls = [call for call in self.calls if call.session not in rewarded.untrained]
        self.failure = writable(rewarded.miscounted(len(self.calls)) or failure)

    def rollout(self) -> Rollout:
        """Return the rollout: its segments, and its rewards or its failure."""
        prompt, failure = self.example.prompt, self.failure
        parents = {call.parent for call in self.calls}
        own = self.rewarded.calls if failure is None else None
        rewards = dict(zip(self.calls, own, strict=True)) if own is not None else None
        segments = [segment_of(call, rewards) for call in self.calls if call not in parents]
        if failure is None and not segments:
            failure = Outcome.GRADER_ERROR, self.limit or NO_CALL
        state = self.rewarded.state(self.limit, len(self.calls))
        if not segments:
            segments = [nothing_sampled(self.maker.renderer.prompt_ids(prompt), prompt)]
        messages, stop_reason = behind_prompt(segments[0].messages, prompt), segments[0].stop_reason
        return Rollout(self.sample_id, messages, stop_reason, tuple(segments), state, failure, branches=True)

    def _prompt(
        self, messages: list[Message], tools: list[dict[str, Any]] | None, parent: Call | None
    ) -> tuple[list[int], bool]:
        """Return the ids to sample from, and True if they go on from those of `parent`."""
        if parent is not None:
            assert parent.turn is not None
            ids, added = parent.turn.token_ids.tolist(), messages[len(parent.messages) + 1 :]
            try:
                # with nothing between them, two turns would be one
                if between := self.maker.bridge_ids(ids, [*parent.messages, parent.full], added, tools):
                    return ids + between, True
            except UserError:
                pass  # the template rewrites earlier turns: what the program goes on from is another conversation
        try:
            return self.maker.renderer.prompt_ids(messages, tools), False
        except UserError as error:
            raise ApiError(400, str(error), "messages") from error


GAVE_UP = Rewarded({"reward": 0.0}, gave_up=True)
"""The rewards of a program that ended with the error of a call that was refused for a limit: the model used it up."""
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p")


def refuse_other_sampling(body: ChatRequest, sampling: Mapping[str, Any]) -> None:
    """Raise ApiError for what a call of a rollout can't ask for: it is sampled as the run says, `sampling`."""
    asked = {"n": body.n != 1, "logprobs": bool(body.logprobs), "top_logprobs": bool(body.top_logprobs)}
    asked |= {name: getattr(body, name) not in (None, value) for name, value in sampling.items()}
    asked |= {name: getattr(body, name) is not None for name in ("seed", "key")}
    asked |= {name: bool(getattr(body, name)) for name in ("stop_token_ids", "ignore_eos", "return_kept_ids")}
    asked["return_token_ids"] = body.return_token_ids
    if (wrong := next((name for name, is_asked in asked.items() if is_asked), None)) is not None:
        setting = f", by orchestrator.sampling.{wrong}" if wrong in sampling else ""
        raise ApiError(400, f"{wrong} is the run's to set while it trains{setting}: leave it out", wrong)


def api_key(sample_id: str) -> str:
    """Return a key for a rollout, which no other program can guess."""
    return f"hone-{sample_id}-{secrets.token_hex(16)}"


class AgentRequest(ChatRequest):
    """A call of a program: it may wish for a certain tool call, which the model decides on as ever."""

    tool_choice: Any = None


def sampled_as(sampling: SamplingParams, call: Call) -> SamplingParams:
    """Return how a call is sampled: as the run says, until one of its own stops, too."""
    return replace(sampling, stop=(*sampling.stop, *call.stops)) if call.stops else sampling


def behind_prompt(messages: list[Message], prompt: list[Message]) -> list[Message]:
    """Return a conversation as a sample records it: it begins with its example's messages."""
    return messages if same_messages(messages[: len(prompt)], prompt) else [*prompt, *messages]


def writable(failure: tuple[Outcome, str] | None) -> tuple[Outcome, str] | None:
    """Return a failure whose words a file takes: a program's may hold half a surrogate pair, or an API key."""
    return failure and (failure[0], redact(failure[1]).encode("utf-8", "replace").decode())


def same_messages(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Return True if the messages say the same; the ids of tool calls and the form of Unicode texts may differ."""
    return len(one) == len(other) and all(map(_same, map(_plain, one), map(_plain, other)))


def _same(one: Any, other: Any) -> bool:
    return one == other or composed(one) == composed(other)


def _plain(message: Message) -> tuple[Any, ...]:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    return message["role"], message.get("content") or "", calls


def segment_of(last: Call, rewards: Mapping[Call, float] | None = None) -> Segment:
    """Return the segment of a call and of those that it goes on from, with their own rewards if they have some."""
    turn = last.turn
    assert turn is not None
    columns = {name: getattr(turn, name).copy() for name in ("sampled_mask", "logprobs", "versions")}
    parts, calls = list[tuple[int, Columns]](), [last]
    while (parent := calls[-1].parent) is not None:
        calls.append(parent)
    done = 0
    for call in reversed(calls):
        own = call.turn
        assert own is not None
        mask = own.sampled_mask
        for name, values in columns.items():
            values[: len(mask)][mask] = getattr(own, name)[mask]
        start = len(mask) - own.num_sampled
        parts += [(start - done, {}), (own.num_sampled, where(own.columns, mask))]
        done = len(mask)
    own = rewards and np.array([rewards[call] for call in reversed(calls)])
    messages = [*last.messages, last.full]
    return replace(turn, **columns, messages=messages, columns=joined(parts), turn_rewards=own)


def nothing_sampled(ids: list[int], prompt: list[Message]) -> Segment:
    """Return the segment of a rollout without an answered call: its prompt. It has failed, so nothing is trained."""
    count = len(ids)
    masks = np.zeros(count, np.bool_), np.zeros(count, np.float32), np.full(count, -1, np.int32)
    return Segment(np.array(ids, np.int64), *masks, list(prompt), "stop")


def run_agents(
    task: AgentEnv,
    policy: Sampler,
    maker: RequestMaker,
    examples: Sequence[Example],
    draws: Sequence[int],
    step: int,
    sampling: SamplingParams,
) -> list[Rollout]:
    """Run the program `maker.rollouts` times for each example; return the samples, group by group.

    Raises Halt if the thread of the programs dies, a program keeps it from answering, or the policy changes a prompt.
    """
    from hone.orchestrator.agent_host import Host

    keys = [(step, draw, sample) for draw in draws for sample in range(maker.rollouts)]
    rollouts = [
        ProgramRollout(maker, sampling, task.agent_limits, examples[i // maker.rollouts], key, i)
        for i, key in enumerate(keys)
    ]
    with Host(task, rollouts) as host:
        while calls := host.waiting_calls():
            calls.sort(key=lambda call: (call.stops, call.rollout.index, call.number))
            turns: list[Segment] = []
            for _, alike in groupby(calls, key=lambda call: call.stops):
                members = list(alike)
                turns += policy.sample([call.request for call in members], sampled_as(sampling, members[0]))
            for call, turn in zip(calls, turns, strict=True):
                prompt = turn.token_ids[: len(turn.token_ids) - turn.num_sampled]
                if tuple(prompt.tolist()) != call.request.prompt_ids:
                    raise Halt(
                        f"a call of rollout {call.request.sample_id} was sampled from other tokens than it was asked "
                        "for: the server changes the prompts that it is given"
                    )
            host.answer(calls, turns)
    return [rollout.rollout() for rollout in rollouts]
