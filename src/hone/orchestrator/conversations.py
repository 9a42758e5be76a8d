"""Rollouts: one completion each or, of a task of several turns, conversations in lock-step rounds.

    trajectories = roll_out(env, policy, maker, examples, draws, step, sampling)

In each round every conversation that goes on has its next turn sampled, all in one call of the policy and in the order
of the rollouts; then the environment answers all of them at once. So neither how long an answer takes nor when a
conversation ends changes what is sampled. The tokens of a turn are kept as sampled, and what the chat template writes
for the environment's answer is appended to them: nothing is tokenised twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hone.environments import Environment, MultiTurnEnv
from hone.environments.multi_turn import Answer, settled
from hone.errors import Halt, UserError
from hone.grading import GraderFailure
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer
from hone.orchestrator.requests import RequestMaker
from hone.orchestrator.types import Request, Sampler
from hone.types import Example, Message, Outcome, Trajectory


def roll_out(
    env: Environment,
    policy: Sampler,
    maker: RequestMaker,
    examples: Sequence[Example],
    draws: Sequence[int],
    step: int,
    sampling: SamplingParams,
) -> list[Trajectory]:
    """`maker.rollouts` trajectories of each example, group by group. UserError if a prompt leaves no room."""
    requests = maker.requests(examples, draws, step)
    if not isinstance(env, MultiTurnEnv):
        made = policy.sample(requests, sampling)
        return [_with_calls(trajectory, maker) for trajectory in made] if maker.tools else made
    keys = [(step, draw, sample) for draw in draws for sample in range(maker.rollouts)]
    states = [
        env.initial_state(examples[i // maker.rollouts], maker.key(*key, "environment")) for i, key in enumerate(keys)
    ]
    conversations = [Conversation(maker, *of_one) for of_one in zip(requests, keys, states, strict=True)]
    live = conversations
    while live:
        for conversation, turn in zip(live, policy.sample([c.request for c in live], sampling), strict=True):
            conversation.say(turn)
        live = [c for c in live if c.stop_reason == "stop" and c.turns < env.max_turns]
        answers = env.respond_many([(c.messages, c.state) for c in live]) if live else []
        live = [c for c, answer in zip(live, answers, strict=True) if c.hear(answer, env)]
    return [c.trajectory() for c in conversations]


def check_turns(env: Environment, renderer: ChatRenderer, example: Example) -> None:
    """UserError if the model's chat template cannot go on with a conversation of this task as it was sampled.

    Tried with turns in which the model thought, for it may: some templates leave thoughts out of earlier turns.
    """
    if not isinstance(env, MultiTurnEnv) or env.max_turns == 1:
        return
    role = "tool" if env.tool_schemas else "user"
    turn = {"role": "assistant", "content": f"{renderer.opened_by_template or '<think>'}a</think>b"}
    # Mistral's templates want ids of nine characters.
    answer = {"role": role, "content": "c"} | ({"name": "d", "tool_call_id": "123456789"} if env.tool_schemas else {})
    begun = [*example.prompt, turn]
    for conversation in (begun, [*begun, answer, turn])[: env.max_turns - 1]:
        try:
            renderer.bridge_ids(conversation, [answer], env.tool_schemas)
        except UserError as error:
            raise UserError(f"{env.id} is a task of several turns, but {error}") from None


def _with_calls(trajectory: Trajectory, maker: RequestMaker) -> Trajectory:
    """The rollout of a single turn, with the calls of tools that are in it."""
    said = trajectory.token_ids[trajectory.sampled_mask].tolist()
    return replace(trajectory, messages=[*trajectory.messages[:-1], maker.renderer.message(said, maker.tools)])


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
        self._sampled: list[bool] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def say(self, turn: Trajectory) -> None:
        """Takes what was sampled for `request`."""
        prompt = len(turn.token_ids) - turn.num_sampled
        said = turn.token_ids[prompt:].tolist()
        if self.turns and tuple(turn.token_ids[:prompt]) != self.request.prompt_ids:
            raise Halt(
                f"turn {self.turns + 1} of rollout {turn.sample_id} was sampled from other tokens than it was asked "
                "for: the server changes the prompts that it is given"
            )
        self._environment(turn.token_ids[len(self._ids) : prompt].tolist())
        self._add(said, True, turn.logprobs[prompt:].tolist(), turn.versions[prompt:].tolist())
        self.messages.append(self.maker.renderer.message(said, self.maker.tools))
        self.turns, self.stop_reason = self.turns + 1, turn.stop_reason

    def hear(self, answer: Answer, env: MultiTurnEnv) -> bool:
        """Takes the environment's answer; True if the policy has another turn, for which `request` asks."""
        said, self.state, self._failure = settled(answer, env, self.messages, self.state)
        if isinstance(answer, GraderFailure):
            self._late |= self._failure is None and answer.outcome is Outcome.GRADER_TIMEOUT
            self._killed |= answer.killed
        if not said:
            return False
        bridge = self._bridge(said)
        limit = self.maker.limit(len(self._ids) + len(bridge))
        if limit < 1:
            self.stop_reason = "length"
            return False
        self._environment(bridge)
        self.messages += said
        ids, key = tuple(self._ids), self.maker.key(*self._key, self.turns)
        self.request = Request(ids, list(self.messages), key, self.request.sample_id, limit, self.turns)
        return True

    def trajectory(self) -> Trajectory:
        """The conversation so far."""
        return Trajectory(
            token_ids=np.array(self._ids, dtype=np.int64),
            sampled_mask=np.array(self._sampled, dtype=np.bool_),
            logprobs=np.array(self._logprobs, dtype=np.float32),
            versions=np.array(self._versions, dtype=np.int32),
            messages=self.messages,
            stop_reason=self.stop_reason,
            sample_id=self.request.sample_id,
            state=self.state,
            failure=self._failure,
            late=self._late,
            killed=self._killed,
        )

    def _bridge(self, said: list[Message]) -> list[int]:
        """What the template writes between the turn and the next one. A turn that ended otherwise than the template's
        turns do, by a general end of text for instance, is closed first.
        """
        renderer = self.maker.renderer
        closing = [] if self._ids[-1] == renderer.end_of_turn_id else [renderer.end_of_turn_id]
        return closing + renderer.bridge_ids(self.messages, said, self.maker.tools)

    def _environment(self, ids: list[int]) -> None:
        self._add(ids, False, [0.0] * len(ids), [-1] * len(ids))

    def _add(self, ids: list[int], sampled: bool, logprobs: list[float], versions: list[int]) -> None:
        self._ids += ids
        self._sampled += [sampled] * len(ids)
        self._logprobs += logprobs
        self._versions += versions
