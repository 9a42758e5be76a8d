"""The protocol of samplers: the engine in this process, or servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hone.inference.types import SamplingParams
from hone.types import Message, Segment


@dataclass(frozen=True)
class Request:
    """A completion to sample. Its random numbers depend only on `key` (64 bits, from `hone.rng.key`).

    `messages`: the conversation in `prompt_ids`; `turn`: number of the turn in the conversation `sample_id`, from 0.
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
        """Return one turn per request, in the order of requests: the prompt and the sampled tokens.

        Call `finished(index, turn)` as soon as a turn has ended; `finished` returns at once.
        """
        ...


class Policy(Sampler, Protocol):
    """A sampler with weights that are updated: the engine in this process, or a server. `version`: of the weights."""

    @property
    def version(self) -> int: ...

    def load(self, version: int, path: Path | None = None) -> None:
        """From now on, sample from weights of this `version`: read from `path`; if None, shared with the trainer."""

    def sleep(self) -> None:
        """Free the sampler's memory on the trainer's GPU, until the next `load`."""

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Return the logprobs of each sequence's tokens except the first, under softmax(logits / temperature)."""
        ...
