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
    """Sampling settings, for `n` completions per prompt. `stop`: token ids and strings that end a completion. The last
    token is then the stop id, or the token that completed the stop string.

    A `temperature` below `GREEDY_BELOW` is greedy. `top_k`, `top_p` and `min_p` cut the distribution, in the order of
    transformers: to the k likeliest tokens; to the smallest set of these with the share top_p of their probability; to
    tokens at least min_p times as likely as the likeliest token. Logprobs are of softmax(logits / temperature) before
    the cuts, or of softmax(logits) if greedy. `top_logprobs`: how many likeliest tokens to return. With
    `return_kept_ids`, a token's logprob is of the cut distribution, and the ids that the cuts left are returned. `seed`
    is for `Engine.generate`.
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
            ("" not in self.stop, "stop has an empty string, which would end every completion: remove it"),
            (
                all(0 <= stop < 2**63 for stop in self.stop if isinstance(stop, int)),
                "stop has a number that is not a token id: ids go from 0 to the vocabulary's size - 1",
            ),
        ):
            if not ok:
                raise UserError(text)

    @property
    def greedy(self) -> bool:
        """Return True if the likeliest token is always taken."""
        return self.temperature < GREEDY_BELOW

    @property
    def keeps_ids(self) -> bool:
        """Return True if each token comes with the ids it was sampled from: if this is requested, and a cut is set."""
        return self.return_kept_ids and not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return tuple(stop for stop in self.stop if isinstance(stop, str))

    @property
    def transform(self) -> tuple[float, float, int, float, int, bool]:
        """Return the parameters that sampling depends on: rows with equal values are sampled together."""
        return self.temperature, self.top_p, self.top_k, self.min_p, self.top_logprobs, self.keeps_ids


def sampling_params(settings: SamplingConfig, **more: Any) -> SamplingParams:
    """Return the sampling parameters from a config section, and from `more`."""
    names = ("temperature", "top_p", "top_k", "min_p")
    return SamplingParams(**{name: getattr(settings, name) for name in names}, stop=tuple(settings.stop), **more)


@dataclass(frozen=True)
class Completion:
    """A sampled continuation: its ids (with the stop token), their logprobs, and why it ended (`stop` or `length`).

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
    """A completion to sample: its prompt, its random key (see `hone.rng.uniforms`) and its token limit.

    `params`: sampling settings, without `max_tokens`, `n` and `seed`; None: the settings of the call that runs the job.
    """

    prompt: tuple[int, ...]
    key: int
    max_tokens: int
    params: SamplingParams | None = None


class ScoredToken(NamedTuple):
    """A given token and its logprob; if requested, the likeliest tokens at its position with their logprobs."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Token(NamedTuple):
    """A token of the job with number `ticket`, and the policy version that sampled the token.

    `top`: the likeliest tokens with their logprobs, if requested. `stop_reason` is set on the last token, `stop_string`
    if the token completed a stop string. `candidates` int32: the ids that the token was sampled from, if requested.
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
    """A job that the engine dropped. `lines`: the traceback's last calls; "" if logits were not finite."""

    ticket: int
    reason: str
    lines: str = ""
