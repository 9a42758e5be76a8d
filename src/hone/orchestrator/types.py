"""The protocols between the orchestrator and what it drives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hone.inference.types import SamplingParams
from hone.trainer.packing import Batch
from hone.trainer.token_stats import TokenStats
from hone.types import Message, Segment


@dataclass(frozen=True)
class Request:
    """One completion to sample. `key` (64 bits, `hone.rng.key`) decides its randomness, and nothing else does.

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
    """Something that completes requests."""

    def sample(
        self, requests: Sequence[Request], sampling: SamplingParams, finished: Finished | None = None
    ) -> list[Segment]:
        """Return one turn per request, in their order: the prompt and what was sampled.

        Call `finished(index, turn)` for each as soon as it has ended; it returns at once.
        """
        ...


class Policy(Sampler, Protocol):
    """A sampler whose weights change: the engine in this process, or a server. `version` is its weights' version."""

    @property
    def version(self) -> int: ...

    def load(self, version: int, path: Path | None = None) -> None:
        """Sample from version `version` from now on: the weights in `path`, or those that it shares (None)."""
        ...

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        """Return the logprobs of each sequence's tokens but the first, of softmax(logits / temperature)."""
        ...


@dataclass(frozen=True)
class Update:
    """A train step's metrics, the fingerprint of the version that it began with, timings in seconds, and what it
    computed of each token.
    """

    metrics: dict[str, float]
    weights: str
    timings: dict[str, float] = field(default_factory=dict)
    token_stats: TokenStats | None = None


class Updates(Protocol):
    """A maker of new weights: the trainer in this process, or one in processes of its own.

    `version` and `fingerprint()` describe the last update that was taken; `ready`: `take` would not wait.
    """

    @property
    def version(self) -> int: ...

    @property
    def ready(self) -> bool: ...

    def put(self, step: int, batch: Batch) -> None:
        """Hand over the batch of a step."""
        ...

    def take(self) -> Update:
        """Return the update on the oldest batch that was put; `version` is the one that it made from then on."""
        ...

    def release(self, version: int) -> None:
        """Let the sampler have later versions than `version`, which has been measured."""
        ...

    def give_up(self) -> None:
        """Publish no more versions: the run ends with what is in flight."""
        ...

    def fingerprint(self) -> str: ...


Publish = Callable[[int], dict[str, float]]
"""(version) -> metrics: puts that version of the weights into the sampler, and judges how far the two are apart."""
Evaluate = Callable[[int, bool], dict[str, float]]
"""(version, is this the end?) -> the evaluation metrics that are due, or an empty dict."""
