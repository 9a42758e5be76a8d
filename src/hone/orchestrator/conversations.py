"""Rollouts: one completion each or, in a task of several turns, conversations in lock-step rounds.

    rollouts = roll_out(env, policy, maker, examples, draws, step, sampling)

Each round samples the next turn of every conversation that goes on, in one call of the policy and in the order of the
rollouts; then the environment answers all of them at once. So the time an answer takes, and the end of a conversation,
do not change what is sampled. The tokens of a turn are kept as sampled, and what the chat template writes for the
environment's answer is appended to them: nothing is tokenised twice. The environment hears a last message too; its
answer to that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hone import rng
from hone.environments import Environment, MultiTurnEnv
from hone.environments.agents import AgentEnv
from hone.environments.multi_turn import Answer, settled
from hone.errors import Halt, UserError
from hone.grading import GraderFailure
from hone.inference.text import before_stop
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.types import Request, Sampler
from hone.types import Columns, Example, Message, Outcome, Rollout, Segment, joined, where


@dataclass(frozen=True)
class RequestMaker:
    """Turns examples into sampling requests, `rollouts` per example.

    A completion gets min(`max_tokens`, what its prompt leaves of `seq_len`) tokens. Its randomness is keyed by
    (seed, purpose, step, draw, sample), so an example that is drawn again samples differently; the number of a later
    turn is part of the key too. `tools` are the environment's, as its prompts name them.
    """

    renderer: ChatRenderer
    rollouts: int
    seq_len: int
    max_tokens: int | None
    seed: int
    purpose: str
    tools: list[dict[str, Any]] | None = None

    def requests(self, examples: Sequence[Example], draws: Sequence[int], step: int) -> list[Request]:
        """Make the requests of all examples, group by group. Raises UserError if a prompt leaves no room."""
        requests = []
        for example, draw in zip(examples, draws, strict=True):
            self.renderer.note(f"example {example.id}", example.prompt, self.tools, key=example.id)
            prompt_ids = tuple(self.renderer.prompt_ids(example.prompt, self.tools))
            limit = self.limit(len(prompt_ids))
            if limit < 1:
                raise UserError(
                    f"the prompt of example {example.id} has {len(prompt_ids)} tokens and leaves no room for a "
                    f"completion in seq_len = {self.seq_len}; raise seq_len, or take the example out of the data"
                )
            for sample in range(self.rollouts):
                key = self.key(step, draw, sample)
                requests.append(Request(prompt_ids, example.prompt, key, f"{step}-{draw}-{sample}", limit))
        return requests

    def key(self, step: int, draw: int, sample: int, *more: str | int) -> int:
        """Return the key of a rollout's first turn; with `more`, of another of its random choices."""
        return rng.key(self.seed, self.purpose, step, draw, sample, *more)

    def bridge_ids(
        self, ids: list[int], messages: list[Message], added: list[Message], tools: list[dict[str, Any]] | None
    ) -> list[int]:
        """Return the ids that continue `ids`, which end with the last of `messages` as sampled, by `added`."""
        # A turn that ended otherwise than the template's do (by a general end of text, say) is closed first.
        closing = [] if ids[-1] == self.renderer.end_of_turn_id else [self.renderer.end_of_turn_id]
        return closing + self.renderer.bridge_ids(messages, added, tools)

    def message(self, ids: list[int], sampling: SamplingParams) -> Message:
        """Return the message of sampled ids, without the stop string that ended it."""
        message, opened = self.renderer.message(ids, self.tools), self.renderer.opened_by_template
        sampled = message["content"].removeprefix(opened)
        return message | {"content": opened + before_stop(sampled, sampling.stop_strings)}

    def limit(self, tokens: int) -> int:
        """Return the most tokens of a completion after so many; less than 1 if there is no room."""
        room = self.seq_len - tokens
        return room if self.max_tokens is None else min(self.max_tokens, room)


def roll_out(
    env: Environment,
    policy: Sampler,
    maker: RequestMaker,
    examples: Sequence[Example],
    draws: Sequence[int],
    step: int,
    sampling: SamplingParams,
    finished: Callable[[int, Rollout], None] | None = None,
) -> list[Rollout]:
    """Sample `maker.rollouts` rollouts of each example, group by group. Raises UserError if one has no room.

    `finished` gets a rollout of one turn, without tools, as soon as it has ended.
    """
    if isinstance(env, AgentEnv):
        from hone.orchestrator.agents import run_agents

        return run_agents(env, policy, maker, examples, draws, step, sampling)
    requests = maker.requests(examples, draws, step)
    if not isinstance(env, MultiTurnEnv):
        if not maker.tools:
            tell = finished and (lambda i, turn: finished(i, of_one_turn(requests[i], turn)))
            turns = policy.sample(requests, sampling, tell)
            return [of_one_turn(request, turn) for request, turn in zip(requests, turns, strict=True)]
        turns = policy.sample(requests, sampling)
        written = [maker.message(turn.token_ids[turn.sampled_mask].tolist(), sampling) for turn in turns]
        both = zip(turns, written, strict=True)
        turns = [replace(turn, messages=[*turn.messages[:-1], message]) for turn, message in both]
        return [of_one_turn(request, turn) for request, turn in zip(requests, turns, strict=True)]
    keys = [(step, draw, sample) for draw in draws for sample in range(maker.rollouts)]
    states = [
        env.initial_state(examples[i // maker.rollouts], maker.key(*key, "environment")) for i, key in enumerate(keys)
    ]
    conversations = [Conversation(maker, *parts) for parts in zip(requests, keys, states, strict=True)]
    live = conversations
    while live:
        for conversation, turn in zip(live, policy.sample([c.request for c in live], sampling), strict=True):
            conversation.add_turn(turn, sampling)
        heard = [c for c in live if env.hears_last or env.has_turn(c.turns, c.stop_reason)]
        answers = env.respond_many([(c.messages, c.state) for c in heard]) if heard else []
        live = [c for c, answer in zip(heard, answers, strict=True) if c.hear(answer, env)]
    return [c.rollout() for c in conversations]


def of_one_turn(request: Request, turn: Segment) -> Rollout:
    """Return the rollout of a single turn."""
    return Rollout(request.sample_id, turn.messages, turn.stop_reason, (turn,))


def check_turns(env: Environment, renderer: ChatRenderer, example: Example) -> None:
    """Raise UserError if the model's chat template cannot go on with a conversation of this task as it was sampled.

    Tried with turns in which the model thought: some templates leave thoughts out of earlier turns.
    """
    if not isinstance(env, MultiTurnEnv) or env.max_turns == 1:
        return
    turn = {"role": "assistant", "content": f"{renderer.opened_by_template or '<think>'}a</think>b"}
    answer = {"role": "user", "content": "c"}
    if env.tool_schemas:  # Mistral's templates want ids of nine characters
        answer = {"role": "tool", "content": "c", "name": "d", "tool_call_id": "123456789"}
    begun = [*example.prompt, turn]
    for conversation in (begun, [*begun, answer, turn])[: env.max_turns - 1]:
        try:
            renderer.bridge_ids(conversation, [answer], env.tool_schemas)
        except UserError as error:
            raise UserError(f"{env.id} is a task of several turns, but {error}") from None


class Conversation:
    """One rollout of several turns, as far as it has come. `request` asks for its next turn."""

    def __init__(self, maker: RequestMaker, request: Request, key: tuple[int, int, int], state: dict[str, Any]) -> None:
        self.maker, self.request, self.state = maker, request, state
        self.messages: list[Message] = list(request.messages)
        self.turns, self.stop_reason = 0, "stop"
        self._key = key
        self._failure: tuple[Outcome, str] | None = None
        self._late = self._killed = False
        self._ids: list[int] = []
        self._tokens: list[tuple[bool, float, int]] = []
        """Of each id: was it sampled, its logprob, the version that sampled it."""
        self._parts: list[tuple[int, Columns]] = []
        """Their columns, as parts of `joined`."""

    def add_turn(self, turn: Segment, sampling: SamplingParams) -> None:
        """Add what was sampled for `request`."""
        prompt = len(turn.token_ids) - turn.num_sampled
        sampled = turn.token_ids[prompt:].tolist()
        if self.turns and tuple(turn.token_ids[:prompt]) != self.request.prompt_ids:
            raise Halt(
                f"turn {self.turns + 1} of rollout {self.request.sample_id} was sampled from other tokens than it was "
                "asked for: the server changes the prompts that it is given"
            )
        self._add_unsampled(turn.token_ids[len(self._ids) : prompt].tolist())
        self._ids += sampled
        columns = turn.logprobs[prompt:].tolist(), turn.versions[prompt:].tolist()
        self._tokens += [(True, logprob, version) for logprob, version in zip(*columns, strict=True)]
        self._parts.append((len(sampled), where(turn.columns, turn.sampled_mask)))
        self.messages.append(self.maker.message(sampled, sampling))
        self.turns, self.stop_reason = self.turns + 1, turn.stop_reason

    def hear(self, answer: Answer, env: MultiTurnEnv) -> bool:
        """Add the environment's answer; return True if the policy has another turn, for which `request` asks."""
        messages, self.state, self._failure = settled(answer, env, self.messages, self.state)
        if isinstance(answer, GraderFailure):
            self._late |= self._failure is None and answer.outcome is Outcome.GRADER_TIMEOUT
            self._killed |= answer.killed
        if not messages or not env.has_turn(self.turns, self.stop_reason):
            return False
        self.maker.renderer.note(f"what the task answers in rollout {self.request.sample_id}", messages)
        bridge = self.maker.bridge_ids(self._ids, self.messages, messages, self.maker.tools)
        limit = self.maker.limit(len(self._ids) + len(bridge))
        if limit < 1:
            self.stop_reason = "length"
            return False
        self._add_unsampled(bridge)
        self.messages += messages
        ids, key = tuple(self._ids), self.maker.key(*self._key, self.turns)
        self.request = Request(ids, list(self.messages), key, self.request.sample_id, limit, self.turns)
        return True

    def rollout(self) -> Rollout:
        """Return the conversation so far."""
        sampled, logprobs, versions = zip(*self._tokens, strict=True)
        segment = Segment(
            token_ids=np.array(self._ids, dtype=np.int64),
            sampled_mask=np.array(sampled, dtype=np.bool_),
            logprobs=np.array(logprobs, dtype=np.float32),
            versions=np.array(versions, dtype=np.int32),
            messages=self.messages,
            stop_reason=self.stop_reason,
            columns=joined(self._parts),
        )
        facts = self.state, self._failure, self._late, self._killed
        return Rollout(self.request.sample_id, self.messages, self.stop_reason, (segment,), *facts)

    def _add_unsampled(self, ids: list[int]) -> None:
        self._ids += ids
        self._tokens += [(False, 0.0, -1)] * len(ids)
        self._parts.append((len(ids), {}))
