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
    """Sampling settings, for `n` completions per prompt. `stop`: token ids and strings that end a completion. The
    completion includes the stop id, or the token that completed the stop string.

    A `temperature` below `GREEDY_BELOW` is greedy. Three cuts of the distribution follow in the order of transformers:
    `top_k` leaves the k likeliest tokens; `top_p` leaves the fewest of these that have the share top_p of their
    probability; `min_p` leaves tokens at least min_p times as likely as the likeliest token. Logprobs are under
    softmax(logits / temperature) before the cuts, or softmax(logits) if greedy. With `return_kept_ids`, logprobs are
    under the cut distribution, and the ids that the cuts left are returned. `top_logprobs`: how many likeliest tokens
    to return. Only `Engine.generate` uses `seed`.
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
        return self.temperature < GREEDY_BELOW

    @property
    def keeps_ids(self) -> bool:
        """Return True if candidate ids are returned with each token: they are requested, and a cut is set."""
        return self.return_kept_ids and not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return tuple(stop for stop in self.stop if isinstance(stop, str))

    @property
    def transform(self) -> tuple[float, float, int, float, int, bool]:
        """Return the parameters that sampling depends on. Rows with equal values are sampled together."""
        return self.temperature, self.top_p, self.top_k, self.min_p, self.top_logprobs, self.keeps_ids


def sampling_params(settings: SamplingConfig, **more: Any) -> SamplingParams:
    """Return the sampling parameters of a config section; `more` sets further fields."""
    names = ("temperature", "top_p", "top_k", "min_p")
    return SamplingParams(**{name: getattr(settings, name) for name in names}, stop=tuple(settings.stop), **more)


@dataclass(frozen=True)
class Completion:
    """A sampled completion: token ids (with the stop token), their logprobs, and why it ended (`stop` or `length`).

    `candidates`: if requested, the ids that each token was sampled from.
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
    """A completion to sample. `key`: the random key, see `hone.rng.uniforms`.

    `params`: sampling settings, but not `max_tokens`, `n` and `seed`; None for the settings of the call that runs the
    job.
    """

    prompt: tuple[int, ...]
    key: int
    max_tokens: int
    params: SamplingParams | None = None


class ScoredToken(NamedTuple):
    """A given token and its logprob. `top`: if requested, the likeliest tokens at this position and their logprobs."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Token(NamedTuple):
    """A token of the job `ticket`. `version`: version of the weights that sampled the token.

    `top`: the likeliest tokens with their logprobs, if requested. `stop_reason` is set on a job's last token, and
    `stop_string` if this token completed a stop string. `candidates` (int32): the ids that the token was sampled from,
    if requested.
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
    """A job that the engine dropped. `lines`: the last calls of the traceback, or "" if logits were not finite."""

    ticket: int
    reason: str
    lines: str = ""
