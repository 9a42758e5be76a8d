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
    """One completion to sample. `key` (64 bits, `hone.rng.key`) alone decides its randomness.

    `messages` are the conversation in `prompt_ids`. `turn` counts the turns of the conversation `sample_id`, from 0.
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
        """Return one turn per request, in their order: the prompt and the sampled tokens.

        Call `finished(index, turn)` as soon as a turn has ended; `finished` returns at once.
        """
        ...


class Policy(Sampler, Protocol):
    """A sampler with weights that change: the engine in this process, or a server. `version`: of the weights."""

    @property
    def version(self) -> int: ...

    def load(self, version: int, path: Path | None = None) -> None:
        """Sample from weights of this `version` from now on: in `path`, or shared in memory (None)."""

    def sleep(self) -> None:
        """Free the sampler's memory on the trainer's GPU, until the next `load`."""

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Return the logprobs of each sequence's tokens except the first, under softmax(logits / temperature)."""
        ...
