"""Tasks of several turns: the model writes, the environment answers, until the conversation is over."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hone.environments.driver import NoRoom
from hone.environments.environment import Environment
from hone.environments.rubric import is_async, is_inline
from hone.errors import UserError
from hone.grading import GraderFailure, Work, attempt, together
from hone.types import Example, Message, Outcome, Rollout

if TYPE_CHECKING:
    from hone.environments.driver import Model
    from hone.model.chat import ChatRenderer


class MultiTurnEnv(Environment):
    """A task of at most `max_turns` completions, with messages of the environment between them."""

    keeps_state = True

    def __init__(self, *, max_turns: int = 8, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(max_turns, int) or max_turns < 1:
            raise UserError(
                f"environment {self.id!r}: max_turns is {max_turns!r}; it must be a whole number, at least 1"
            )
        self.max_turns = max_turns

    async def rollout(self, model: Model, example: Example) -> Rollout:
        """Hold a conversation, until the environment ends it or the model has no turn left."""
        messages, state = example.prompt, self.initial_state(example, model.key("environment"))
        turns, failure, late, killed = 0, None, False, False
        with suppress(NoRoom):
            while True:
                turn = await model.sample(messages, self.tool_schemas or [])
                messages, turns = [*messages, turn.message], turns + 1
                if not (self.hears_last or self.has_turn(turns, turn.stop_reason)):
                    break
                answer = await model.respond(messages, state)
                added, state, failure = settled(answer, self, messages, state)
                if isinstance(answer, GraderFailure):
                    late |= failure is None and answer.outcome is Outcome.GRADER_TIMEOUT
                    killed |= answer.killed
                if not added or not self.has_turn(turns, turn.stop_reason):
                    break
                messages = [*messages, *added]
        return replace(model.rollout(), state=state, failure=failure, late=late, killed=killed)

    def check_template(self, renderer: ChatRenderer, example: Example) -> None:
        """Raise UserError if the model's chat template can't continue a conversation, such as one with thoughts."""
        turn = {"role": "assistant", "content": f"{renderer.opened_by_template or '<think>'}a</think>b"}
        answer = {"role": "user", "content": "c"}
        if self.tool_schemas:  # Mistral's templates want ids of nine characters
            answer = {"role": "tool", "content": "c", "name": "d", "tool_call_id": "123456789"}
        begun = [*example.prompt, turn]
        for conversation in (begun, [*begun, answer, turn])[: self.max_turns - 1]:
            try:
                renderer.bridge_ids(conversation, [answer], self.tool_schemas)
            except UserError as error:
                raise UserError(f"{self.id} is a task of several turns, but {error}") from None

    def initial_state(self, example: Example, seed: int) -> dict[str, Any]:
        """Return the first `state`: prompt, answer, info (dates as text), example_id, and `seed` for random draws."""
        return {
            "prompt": [dict(message) for message in example.prompt],
            "answer": example.answer,
            "info": json.loads(json.dumps(example.info, default=str)),
            "example_id": example.id,
            "seed": seed,
        }

    def env_response(self, messages: list[Message], state: dict[str, Any]) -> list[Message]:
        """Return the messages that follow the model's message; [] ends the conversation. May be async.

        Runs after each message of the model. After the model's last message (turn `max_turns`, or cut by a token limit)
        the result is not used, but reward functions see the changes of `state`.
        """
        raise NotImplementedError

    @property
    def hears_last(self) -> bool:
        """True if `env_response` is also called after the model's last message."""
        return True

    def has_turn(self, turns: int, stop_reason: str) -> bool:
        """Return True if the model has another turn after `turns` messages and this `stop_reason`."""
        return stop_reason == "stop" and turns < self.max_turns

    @property
    def responds_inline(self) -> bool:
        return is_inline(self.env_response)

    @property
    def all_inline(self) -> bool:
        return super().all_inline and self.responds_inline

    @property
    def responds_async(self) -> bool:
        """True if `env_response` is async, so that many conversations can wait at the same time."""
        return is_async(self.env_response)

    def failed_response(self, messages: list[Message], failure: GraderFailure) -> list[Message] | None:
        """Return messages for the model to replace a failed `env_response`, or None to fail the sample."""
        return None

    def respond_many(self, turns: Sequence[tuple[list[Message], dict[str, Any]]]) -> list[Answer]:
        """Return (messages of the environment, new state) for each conversation (messages, state), in order.

        `env_response` runs in workers (then `state` must be JSON), unless it is marked `inline` or no worker can load
        this environment. If it raises or takes too long, the result is a failure. The arguments are not changed.
        """
        workers = self._workers_for(self.responds_inline)
        if workers is None:
            return together([self.responding(*turn) for turn in turns], self.limits.timeout)
        return workers.respond(turns, self.responds_async)

    def responding(self, messages: list[Message], state: dict[str, Any]) -> Work[Answer]:
        copied = yield from attempt(copy.deepcopy, (messages, state))
        if isinstance(copied, GraderFailure):
            return copied
        answer = yield from attempt(self.env_response, *copied)
        if isinstance(answer, GraderFailure):
            return answer
        if answer is not None and not isinstance(answer, list | tuple):
            what = f"env_response returned {answer!r:.200}; it must return a list of messages"
            return GraderFailure(Outcome.GRADER_ERROR, what)
        return list(answer or []), copied[1]


Answer = tuple[list[Message], dict[str, Any]] | GraderFailure
"""(The environment's messages, the state after them), or the environment's failure."""


def settled(
    answer: Answer, env: MultiTurnEnv, messages: list[Message], state: dict[str, Any]
) -> tuple[list[Message], dict[str, Any], tuple[Outcome, str] | None]:
    """Return the environment's messages as plain JSON, the new state, and why the conversation failed, if it did."""
    if isinstance(answer, GraderFailure):
        response = env.failed_response(messages, answer)
        if response is None:
            return [], state, (answer.outcome, answer.detail)
    else:
        response, state = answer
    try:
        return [_copied(message) for message in response], state, None
    except ValueError as error:
        return [], state, (Outcome.GRADER_ERROR, str(error))


def _copied(message: Any) -> Message:
    texts = isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))
    if texts and message["role"] != "assistant":
        try:
            # A tool may print half a surrogate pair.
            return json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
        except (TypeError, ValueError):
            pass
    raise ValueError(
        f"env_response returned {message!r:.200}; it must return messages that are JSON, with a text as role and "
        "content, and with other roles than the model's"
    )
