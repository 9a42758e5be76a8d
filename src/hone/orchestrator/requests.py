"""From examples to what is asked of a policy: the ids of their prompts, keys and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hone import rng
from hone.errors import UserError
from hone.model.chat import ChatRenderer
from hone.orchestrator.types import Request
from hone.types import Example


@dataclass(frozen=True)
class RequestMaker:
    """Turns examples into sampling requests, `rollouts` per example.

    A completion gets min(`max_tokens`, what its prompt leaves of `seq_len`) tokens. Its randomness is keyed by
    (seed, purpose, step, draw, sample), so an example that is drawn again samples differently; that of a later turn of
    a conversation by its number too. `tools` are the environment's, as its prompts name them.
    """

    renderer: ChatRenderer
    rollouts: int
    seq_len: int
    max_tokens: int | None
    seed: int
    purpose: str
    tools: list[dict[str, Any]] | None = None

    def requests(self, examples: Sequence[Example], draws: Sequence[int], step: int) -> list[Request]:
        """Requests of all examples, group by group. UserError if a prompt leaves no room for a completion."""
        requests = []
        for example, draw in zip(examples, draws, strict=True):
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
        """Key of a rollout's first turn; with `more` of another of its random choices, such as a later turn."""
        return rng.key(self.seed, self.purpose, step, draw, sample, *more)

    def limit(self, tokens: int) -> int:
        """Most tokens of a completion after this many; less than 1 if there is no room."""
        room = self.seq_len - tokens
        return room if self.max_tokens is None else min(self.max_tokens, room)
