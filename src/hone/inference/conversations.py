"""Rollouts with a policy that samples token ids (the engine, or a server).

    rollouts = roll_out(env, policy, settings, examples, draws, step, sampling)

Sampled tokens are never changed. If a call's messages begin with an earlier call's messages and reply, the call
continues the earlier ids, and only the new messages are rendered and tokenised. Any other call begins a new segment.
All segments have the rollout's reward, unless each call has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from hone import rng
from hone.environments import Environment
from hone.environments.driver import Driver, Model, NoRoom, Tools, Turn
from hone.errors import Halt, UserError
from hone.inference.policy import Request, Sampler
from hone.inference.text import before_stop
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.model.texts import same_messages
from hone.types import Columns, Example, Message, Rollout, Segment, joined, where


@dataclass(frozen=True)
class RolloutSettings:
    """Settings of rollouts. `rollouts`: number per example; `tools`: the environment's tools, listed in prompts.

    A completion has at most `max_tokens` tokens, and with its prompt at most `seq_len`. The random key is made from
    (seed, purpose, step, draw, sample) and, after the first turn, the turn's number. So an example that is drawn again
    gets other samples.
    """

    renderer: ChatRenderer
    rollouts: int
    seq_len: int
    max_tokens: int | None
    seed: int
    purpose: str
    tools: Tools = None

    def prompts(self, examples: Sequence[Example]) -> list[tuple[int, ...]]:
        """Return the ids of the examples' prompts. Raises UserError if a prompt leaves no room for a completion."""
        prompts = []
        for example in examples:
            self.renderer.note(f"example {example.id}", example.prompt, self.tools, key=example.id)
            prompts.append(tuple(self.renderer.prompt_ids(example.prompt, self.tools)))
            if self.limit(len(prompts[-1])) < 1:
                raise UserError(
                    f"the prompt of example {example.id} has {len(prompts[-1])} tokens and leaves no room for a "
                    f"completion in seq_len = {self.seq_len}; raise seq_len, or remove the example from the data"
                )
        return prompts

    def bridge_ids(self, ids: list[int], messages: list[Message], added: list[Message], tools: Tools) -> list[int]:
        """Return the ids of the messages `added`, which follow `messages`. `ids` are the ids of `messages`."""
        # A turn that ended otherwise than the template's do (by a general end of text, say) is closed first.
        closing = [] if ids[-1] == self.renderer.end_of_turn_id else [self.renderer.end_of_turn_id]
        return closing + self.renderer.bridge_ids(messages, added, tools)

    def limit(self, tokens: int) -> int:
        """Return the largest length of a completion after `tokens` tokens; less than 1 if there is no room."""
        room = self.seq_len - tokens
        return room if self.max_tokens is None else min(self.max_tokens, room)


def roll_out(
    env: Environment,
    policy: Sampler,
    settings: RolloutSettings,
    examples: Sequence[Example],
    draws: Sequence[int],
    step: int,
    sampling: SamplingParams,
    finished: Callable[[int, Rollout], None] | None = None,
) -> list[Rollout]:
    """Return all rollouts, by example. Calls `finished` when a rollout ends. UserError if a prompt is too long."""
    prompts = settings.prompts(examples)

    def sample(calls: list[Call], give: Callable[[int, Segment], None]) -> list[Segment]:
        turns: list[Segment] = []
        for stops, alike in groupby(calls, key=lambda call: call.stops):
            first, requests = len(turns), [call.request for call in alike]
            early = finished and (lambda index, turn, first=first: give(first + index, turn))
            turns += policy.sample(requests, with_stops(sampling, stops), early)
        for call, turn in zip(calls, turns, strict=True):
            prompt = turn.token_ids[: len(turn.token_ids) - turn.num_sampled]
            if call.checked and tuple(prompt.tolist()) != call.request.prompt_ids:
                raise Halt(
                    f"turn {call.request.turn + 1} of rollout {call.request.sample_id} was sampled from another prompt "
                    "than requested: use a server that does not change prompts"
                )
        return turns

    driver = Driver(env, sample)
    models = [
        IdsModel(driver, n * settings.rollouts + i, examples[n], (step, draw, i), settings, sampling, prompts[n])
        for n, draw in enumerate(draws)
        for i in range(settings.rollouts)
    ]
    return driver.run(models, finished)


def with_stops(sampling: SamplingParams, stops: tuple[str, ...]) -> SamplingParams:
    return replace(sampling, stop=(*sampling.stop, *stops)) if stops else sampling


@dataclass(eq=False)
class Call:
    """A call of the model. After the answer, `turn` has the sampled tokens, and `reply` is the returned message.

    `parent`: the call that this call continues. `future`: gives the turn, or raises the error.
    """

    request: Request
    tools: Tools
    parent: Call | None
    future: asyncio.Future[Segment] = field(init=False)
    session: str = ""
    """The caller's id, from the header X-Session-ID."""
    stops: tuple[str, ...] = ()
    """This call's stop strings, in addition to the run's."""
    checked: bool = True
    """True if it is an error when the server changes the prompt."""
    reply: Message = field(default_factory=dict)
    turn: Segment | None = None
    full: Message = field(default_factory=dict)
    """The reply with thoughts, and with tool calls as text."""
    continued: bool = False
    """True if another call continues this call."""

    def goes_on_with(self, messages: Sequence[Message], tools: Tools, session: str) -> bool:
        known = self.request.messages
        return (
            self.turn is not None
            and not self.continued
            and self.session == session
            and self.tools == tools
            and len(messages) > len(known) + 1
            and same_messages(messages[: len(known)], known)
            and same_messages([messages[len(known)]], [self.reply])
        )

    def added(self, messages: list[Message]) -> list[Message]:
        return messages[len(self.request.messages) + 1 :]


class IdsModel(Model):
    """The model of one rollout; records the calls and their ids. Must be used on the driver's event loop."""

    def __init__(
        self,
        driver: Driver,
        index: int,
        example: Example,
        place: tuple[int, int, int],
        settings: RolloutSettings,
        sampling: SamplingParams,
        prompt_ids: tuple[int, ...],
    ) -> None:
        super().__init__(driver, index, example, "{}-{}-{}".format(*place))
        self.settings, self.sampling = settings, sampling
        self.calls: list[Call] = []
        self._prompt_ids, self._place = prompt_ids, place

    def key(self, *purpose: str | int) -> int:
        return rng.key(self.settings.seed, self.settings.purpose, *self._place, *purpose)

    async def sample(self, messages: list[Message], tools: Tools = None) -> Turn:
        offered, note = tools or None, self.settings.renderer.note
        parent = self.parent_of(messages, offered)
        if parent is not None:
            note(f"what the task answers in rollout {self.sample_id}", parent.added(messages))
        elif messages != self.example.prompt:
            note(f"a call of rollout {self.sample_id}", messages, offered)
        ids, parent = self.prompt(messages, offered, parent)
        try:
            call = self.begin(messages, offered, ids, parent, checked=parent is not None)
        except NoRoom:
            if parent is not None and parent.turn is not None:
                parent.turn = replace(parent.turn, stop_reason="length")
            raise
        turn = await call.future
        full = turn.messages[-1] if tools is None else self.message(call, turn)
        call.turn, call.full, call.reply = turn, full, full
        return Turn(full, turn.stop_reason)

    def parent_of(self, messages: Sequence[Message], tools: Tools, session: str = "") -> Call | None:
        goes_on = [call for call in self.calls if call.goes_on_with(messages, tools, session)]
        return max(goes_on, key=lambda call: len(call.request.messages), default=None)

    def prompt(self, messages: list[Message], tools: Tools, parent: Call | None) -> tuple[Sequence[int], Call | None]:
        """Return the ids of a call's prompt, and `parent` if these ids continue the parent's ids, else None."""
        if parent is not None and parent.turn is not None:
            ids, earlier = parent.turn.token_ids.tolist(), [*parent.request.messages, parent.full]
            # with nothing between them, two turns would be one
            if between := self.settings.bridge_ids(ids, earlier, parent.added(messages), tools):
                return ids + between, parent
        if tools == (self.settings.tools or None) and messages == self.example.prompt:
            return self._prompt_ids, None
        return self.settings.renderer.prompt_ids(messages, tools), None

    def begin(
        self,
        messages: list[Message],
        tools: Tools,
        ids: Sequence[int],
        parent: Call | None,
        most: int | None = None,
        **more: Any,
    ) -> Call:
        """Start sampling a call. Raises NoRoom if `seq_len` leaves no room for a token."""
        if (limit := self.settings.limit(len(ids))) < 1:
            raise NoRoom(f"the conversation has {len(ids)} tokens, seq_len is {self.settings.seq_len}")
        number, self.asked = self.asked, self.asked + 1
        key, limit = self.key(*([number] if number else [])), limit if most is None else min(limit, most)
        request = Request(tuple(ids), messages, key, self.sample_id, limit, number)
        if parent is not None:
            parent.continued = True
        self.calls.append(call := Call(request, tools, parent, **more))
        call.future = self.driver.ask_turn(self.index, call, call.stops)
        return call

    def message(self, call: Call, turn: Segment) -> Message:
        """Return the sampled message of a call, with tool calls, and cut off before a stop string."""
        renderer, stops = self.settings.renderer, with_stops(self.sampling, call.stops).stop_strings
        message = renderer.message(turn.token_ids[turn.sampled_mask].tolist(), call.tools)
        sampled = message["content"].removeprefix(renderer.opened_by_template)
        return message | {"content": renderer.opened_by_template + before_stop(sampled, stops)}

    def rollout(self, turn_rewards: Sequence[float] | None = None) -> Rollout:
        calls = [call for call in self.calls if call.turn is not None]
        rewards = None if turn_rewards is None else dict(zip(calls, turn_rewards, strict=True))
        parents = {call.parent for call in calls}
        prompt = self.example.prompt
        segments = [segment_of(call, rewards) for call in calls if call not in parents]
        if not segments:
            ids = np.array(self._prompt_ids, np.int64)  # a failed rollout is not trained on
            none = np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.float32), np.full(len(ids), -1, np.int32)
            segments = [Segment(ids, *none, list(prompt), "stop")]
        messages, stop_reason = behind_prompt(segments[0].messages, prompt), segments[0].stop_reason
        return Rollout(self.sample_id, messages, stop_reason, tuple(segments), branches=len(segments) > 1)


def behind_prompt(messages: list[Message], prompt: list[Message]) -> list[Message]:
    """Return a conversation with `prompt` put before it, unless the conversation already begins with `prompt`."""
    return messages if same_messages(messages[: len(prompt)], prompt) else [*prompt, *messages]


def segment_of(last: Call, rewards: Mapping[Call, float] | None = None) -> Segment:
    """Return one segment of the call `last` and all calls that it continues. `rewards`: any rewards of single calls."""
    turn = last.turn
    assert turn is not None
    messages = [*last.request.messages, last.full]
    if last.parent is None and rewards is None:
        return turn if turn.messages == messages else replace(turn, messages=messages)
    columns = {name: getattr(turn, name).copy() for name in ("sampled_mask", "logprobs", "versions")}
    parts, calls = list[tuple[int, Columns]](), [last]
    while (parent := calls[-1].parent) is not None:
        calls.append(parent)
    done = 0
    for call in reversed(calls):
        segment = call.turn
        assert segment is not None
        mask = segment.sampled_mask
        for name, values in columns.items():
            values[: len(mask)][mask] = getattr(segment, name)[mask]
        start = len(mask) - segment.num_sampled
        parts += [(start - done, {}), (segment.num_sampled, where(segment.columns, mask))]
        done = len(mask)
    turn_rewards = rewards and np.array([rewards[call] for call in reversed(calls)], float)
    return replace(turn, **columns, messages=messages, columns=joined(parts), turn_rewards=turn_rewards)
