"""Protocols that the engine in this process and inference servers implement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hone.inference.types import SamplingParams
from hone.types import Message, Segment


@dataclass(frozen=True)
class Request:
    """A request to sample one completion. The random numbers depend only on `key` (64 bits, from `hone.rng.key`).

    `messages`: the conversation that `prompt_ids` encode; `turn`: number of the turn in rollout `sample_id`, from 0.
    """

    prompt_ids: tuple[int, ...]
    messages: list[Message]
    key: int
    sample_id: str
    max_tokens: int
    turn: int = 0


Finished = Callable[[int, Segment], None]
"""Called with (index, turn); see `Sampler.sample`."""


class Sampler(Protocol):
    def sample(
        self, requests: Sequence[Request], sampling: SamplingParams, finished: Finished | None = None
    ) -> list[Segment]:
        """Return one turn (the prompt and the sampled tokens) per request, in the order of requests.

        Calls `finished(index, turn)` as soon as a turn has ended. `finished` must return at once.
        """
        ...


class Policy(Sampler, Protocol):
    """A sampler with weights that can be updated. `version`: the version of its weights."""

    @property
    def version(self) -> int: ...

    def load(self, version: int, path: Path | None = None) -> None:
        """From now on, sample from version `version` of the weights, read from `path` (None: the trainer's weights)."""

    def sleep(self) -> None:
        """Free the sampler's memory on the trainer's GPU, until the next `load`."""

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Return the logprobs of each sequence's tokens except the first, under softmax(logits / temperature)."""
        ...
