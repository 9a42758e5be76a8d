"""The engine's jobs and results."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hone.errors import UserError
from hone.types import GREEDY_BELOW, Ragged

if TYPE_CHECKING:
    from hone.config.shared import SamplingConfig


@dataclass(frozen=True)
class SamplingParams:
    """Sampling settings, for `n` completions per prompt. `stop`: token ids and strings that end a completion; the stop
    id, or the token that completed the stop string, stays as the last token.

    A `temperature` below `GREEDY_BELOW` is greedy. `top_k`, `top_p` and `min_p` cut the distribution, in the order of
    transformers: to the k likeliest tokens, to the smallest set of them that holds the share top_p of their
    probability, to tokens at least min_p times as likely as the likeliest. Logprobs are of softmax(logits /
    temperature) before the cuts (of softmax(logits) when greedy); `top_logprobs` requests this many likeliest tokens,
    too. With `return_kept_ids` a sampled token's logprob is of the cut distribution, and comes with the ids that the
    cuts left. `seed` is for `Engine.generate`.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    n: int = 1
    seed: int = 0
    stop: tuple[int | str, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int = 0
    return_kept_ids: bool = False

    def __post_init__(self) -> None:
        for ok, text in (
            (self.max_tokens >= 1, f"max_tokens is {self.max_tokens}; it must be at least 1"),
            (
                0 <= self.temperature < math.inf,
                f"temperature is {self.temperature}; it must be 0 (greedy) or more, and finite",
            ),
            (0 < self.top_p <= 1, f"top_p is {self.top_p}; it must lie in (0, 1]"),
            (0 <= self.top_k < 2**31, f"top_k is {self.top_k}; it must be 0 (off) or more, and less than 2^31"),
            (0 <= self.min_p <= 1, f"min_p is {self.min_p}; it must lie in [0, 1]"),
            (self.n >= 1, f"n is {self.n}; it must be at least 1"),
            (self.top_logprobs >= 0, f"top_logprobs is {self.top_logprobs}; it must be 0 (off) or more"),
            ("" not in self.stop, "stop has an empty string, which would end every completion: take it out"),
            (
                all(0 <= stop < 2**63 for stop in self.stop if isinstance(stop, int)),
                "stop has a number that is no token id: ids go from 0 to the vocabulary's size",
            ),
        ):
            if not ok:
                raise UserError(text)

    @property
    def greedy(self) -> bool:
        """Return True if the likeliest token is taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def keeps_ids(self) -> bool:
        """Return True if tokens come with the ids they were sampled from: this is requested, and cuts are set."""
        return self.return_kept_ids and not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return tuple(stop for stop in self.stop if isinstance(stop, str))

    @property
    def transform(self) -> tuple[float, float, int, float, int, bool]:
        """Return the parameters that turn logits into a token: rows with equal values are sampled together."""
        return self.temperature, self.top_p, self.top_k, self.min_p, self.top_logprobs, self.keeps_ids


def sampling_params(settings: SamplingConfig, **more: Any) -> SamplingParams:
    """Return the sampling parameters of a config's section and `more`."""
    names = ("temperature", "top_p", "top_k", "min_p")
    return SamplingParams(**{name: getattr(settings, name) for name in names}, stop=tuple(settings.stop), **more)


@dataclass(frozen=True)
class Completion:
    """One sampled continuation: its ids (stop token included), their logprobs, and why it ended (`stop`, `length`).

    `candidates`: the ids that each token was sampled from, if requested.
    """

    token_ids: list[int]
    logprobs: list[float]
    stop_reason: str
    candidates: Ragged | None = None

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs) > 0
        assert self.candidates is None or len(self.candidates.counts) == len(self.token_ids)


@dataclass(frozen=True)
class Job:
    """One completion to sample: its prompt, the key of its randomness (see `hone.rng.uniforms`), its token limit.

    `params`, except `max_tokens`, `n` and `seed`: sampling settings; None: from the call that runs the job.
    """

    prompt: tuple[int, ...]
    key: int
    max_tokens: int
    params: SamplingParams | None = None


class ScoredToken(NamedTuple):
    """A given token, its logprob, and the likeliest tokens in its place with their logprobs, if requested."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Token(NamedTuple):
    """One token of the job with number `ticket`, and the policy version that sampled it.

    `top`: the likeliest tokens with their logprobs, if requested. `stop_reason` is set on the last token, `stop_string`
    if the token completed a stop string. `candidates` int32: ids that it was sampled from, if requested.
    """

    ticket: int
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    version: int
    stop_reason: str | None
    stop_string: str | None = None
    candidates: np.ndarray | None = None


@dataclass(frozen=True)
class Failure:
    """A job that the engine dropped. `lines`: last calls of the traceback; "" if the logits were not finite."""

    ticket: int
    reason: str
    lines: str = ""
