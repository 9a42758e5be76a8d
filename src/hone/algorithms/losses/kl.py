"""Schulman's estimates of KL(pi || pi_ref) from tokens that pi sampled (http://joschu.net/blog/kl-approx.html)."""

from __future__ import annotations

from torch import Tensor

from hone.algorithms.losses.ratio import log_ratio


def kl_estimate(logprobs_M: Tensor, ref_logprobs_M: Tensor, kind: str = "k3") -> Tensor:
    """Compute an estimate for each token `[M]`, in nats, with d = log pi - log pi_ref clamped to [-10, 10].

    "k1"  d                    unbiased; may be negative
    "k2"  d² / 2               biased; never negative
    "k3"  exp(-d) - 1 + d      unbiased; never negative (GRPO, arXiv:2402.03300)

    As a loss, only the estimate is differentiated, not the probability of sampling the token. Gradients, with
    g = grad log pi, and E the mean over tokens that pi sampled:

    "k1"  E g = 0
    "k2"  E d g = grad KL(pi || pi_ref)
    "k3"  E (1 - exp(-d)) g = grad KL(pi_ref || pi)

    Multiplied by the ratio r = pi / pi_old (`kl_bias_correction`, DeepSeek-V3.2, arXiv:2512.02556), at r = 1:

    "k1"  E (1 + d) g = grad KL(pi || pi_ref)
    "k2"  E (d + d² / 2) g = grad E d² / 2, no KL divergence
    "k3"  E d g = grad KL(pi || pi_ref)
    """
    d_M = log_ratio(logprobs_M, ref_logprobs_M)
    if kind == "k1":
        return d_M
    return d_M.square() / 2 if kind == "k2" else (-d_M).exp() - 1 + d_M
