"""The protocols between the orchestrator and what it drives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hone.inference.types import SamplingParams
from hone.types import Message, Trajectory


@dataclass(frozen=True)
class Request:
    """One completion to sample. `key` (64 bits, `hone.rng.key`) decides its randomness, and nothing else does.

    `messages` are those that `prompt_ids` say. `turn` counts the turns of the conversation `sample_id`, from 0.
    """

    prompt_ids: tuple[int, ...]
    messages: list[Message]
    key: int
    sample_id: str
    max_tokens: int
    turn: int = 0


class Sampler(Protocol):
    """Something that completes requests."""

    def sample(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Trajectory]:
        """One trajectory per request, in their order."""
        ...


class Policy(Sampler, Protocol):
    """A sampler whose weights change: the engine in this process, or a server."""

    @property
    def version(self) -> int:
        """Updates behind the weights that sample now."""
        ...

    def load(self, version: int, path: Path | None = None) -> None:
        """Samples from version `version` from now on: the weights in `path`, or those that it shares (None)."""
        ...

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """The sampler's own logprobs of each sequence's tokens but the first, of softmax(logits / temperature)."""
        ...
