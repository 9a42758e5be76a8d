"""Estimates of KL(pi || pi_ref) from tokens that pi sampled, by Schulman (http://joschu.net/blog/kl-approx.html)."""

from __future__ import annotations

from torch import Tensor

from hone.algorithms.losses.ratio import log_ratio


def kl_estimate(logprobs_M: Tensor, ref_logprobs_M: Tensor, kind: str = "k3") -> Tensor:
    """Compute an estimate for each token `[M]`, in nats, with d = log pi - log pi_ref clamped to [-10, 10].

    "k1"  d                    unbiased; negative for half of the tokens. As a loss its gradient has mean 0: use it in
                               the reward.
    "k2"  d² / 2               as a loss it has the gradient of the KL divergence
    "k3"  exp(-d) - 1 + d      unbiased and never negative (GRPO, arXiv:2402.03300)
    """
    d_M = log_ratio(logprobs_M, ref_logprobs_M)
    if kind == "k1":
        return d_M
    return d_M.square() / 2 if kind == "k2" else (-d_M).exp() - 1 + d_M
