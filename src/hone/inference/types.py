"""What goes into the engine and what comes out."""

from __future__ import annotations

from dataclasses import dataclass

from hone.errors import UserError


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. `n` completions per prompt; `stop` are token ids that end a completion (kept as its last token).

    `temperature` 0 is greedy. Logprobs are of softmax(logits / temperature) before top-p and top-k cut it (of
    softmax(logits) when greedy). `seed` keys the randomness of `Engine.generate`.
    """

    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    n: int = 1
    seed: int = 0
    stop: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for ok, text in (
            (self.max_tokens >= 1, f"max_tokens is {self.max_tokens}; it must be at least 1"),
            (self.temperature >= 0, f"temperature is {self.temperature}; it must be 0 (greedy) or more"),
            (0 < self.top_p <= 1, f"top_p is {self.top_p}; it must lie in (0, 1]"),
            (self.top_k >= 0, f"top_k is {self.top_k}; it must be 0 (off) or more"),
            (self.n >= 1, f"n is {self.n}; it must be at least 1"),
        ):
            if not ok:
                raise UserError(text)


@dataclass(frozen=True)
class Completion:
    """One sampled continuation: its ids (stop token included), their logprobs, and why it ended (`stop`, `length`)."""

    token_ids: list[int]
    logprobs: list[float]
    stop_reason: str

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs) > 0
