"""Weights `[M]` of token losses, which correct for a sampler that differs from the trained policy.

ρ_t = pi_old(o_t) / mu(o_t): a token's probability in the trainer before the update, divided by its probability in the
sampler. They differ if the sampler has other kernels, older weights or 8 bits. M: loss tokens of a micro-batch;
`lengths_S` int64: the number of loss tokens of each of its S completions. Weights carry no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hone.algorithms.losses.ratio import log_ratio, sequence_means, sequence_sums, spread


def token_truncated(old_logprobs_M: Tensor, sampling_logprobs_M: Tensor, cap: float = 2.0) -> Tensor:
    """Compute min(ρ_t, cap): truncated importance sampling of tokens (TIS, https://fengyao.notion.site/off-policy-rl)."""
    return log_ratio(old_logprobs_M, sampling_logprobs_M).exp().clamp(max=cap)


def sequence_truncated(
    old_logprobs_M: Tensor, sampling_logprobs_M: Tensor, lengths_S: Tensor, cap: float = 2.0
) -> Tensor:
    """Compute min(Π_t ρ_t, cap), the product over a completion. Unbiased except for the cap; more variance than TIS."""
    sums_S = sequence_sums(log_ratio(old_logprobs_M, sampling_logprobs_M), lengths_S)
    return spread(sums_S.clamp(max=10.0).exp().clamp(max=cap), lengths_S, len(old_logprobs_M))


def band(old_logprobs_M: Tensor, sampling_logprobs_M: Tensor, low: float = 0.5, high: float = 5.0) -> Tensor:
    """Compute ρ_t where low <= ρ_t <= high, else 0 (IcePop, https://ringtech.notion.site/icepop)."""
    ratio_M = log_ratio(old_logprobs_M, sampling_logprobs_M).exp()
    return torch.where((ratio_M >= low) & (ratio_M <= high), ratio_M, 0.0)


def geometric_rejection(
    old_logprobs_M: Tensor, sampling_logprobs_M: Tensor, lengths_S: Tensor, low: float = 0.99, high: float = 1.01
) -> Tensor:
    """Return 1 for completions with low <= exp(mean_t log ρ_t) <= high, else 0 (Geo-RS, as in verl and SkyRL)."""
    means_S = sequence_means(log_ratio(old_logprobs_M, sampling_logprobs_M), lengths_S).exp()
    kept_S = ((means_S >= low) & (means_S <= high)).to(old_logprobs_M.dtype)
    return spread(kept_S, lengths_S, len(old_logprobs_M))
