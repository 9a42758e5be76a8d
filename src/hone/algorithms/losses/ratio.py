"""Probability ratios of tokens and completions. `lengths_S` int64: the loss tokens in each completion, in order."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 10.0
"""|log ratio| is clamped to this before exp: one token of a stale or broken sample must not overflow the batch."""


def log_ratio(logprobs_M: Tensor, old_logprobs_M: Tensor) -> Tensor:
    """Compute log r_t = log pi(o_t) - log pi_old(o_t) `[M]`, clamped to [-10, 10]."""
    return (logprobs_M - old_logprobs_M).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def importance_ratio(logprobs_M: Tensor, old_logprobs_M: Tensor) -> Tensor:
    """Compute r_t = pi(o_t) / pi_old(o_t) `[M]`, with |log r_t| clamped to 10."""
    return log_ratio(logprobs_M, old_logprobs_M).exp()


def sequence_sums(values_M: Tensor, lengths_S: Tensor) -> Tensor:
    """Sum over each completion: `[M]` to `[S]`. The order of summation is fixed on any device."""
    return torch.segment_reduce(values_M, "sum", lengths=lengths_S, unsafe=True)  # pyright: ignore


def sequence_means(values_M: Tensor, lengths_S: Tensor) -> Tensor:
    """Compute the mean over each completion: `[M]` to `[S]`."""
    return sequence_sums(values_M, lengths_S) / lengths_S


def spread(values_S: Tensor, lengths_S: Tensor, tokens: int) -> Tensor:
    """Repeat each completion's value for all its tokens: `[S]` to `[M]`, M = `tokens`."""
    return values_S.repeat_interleave(lengths_S, output_size=tokens)
