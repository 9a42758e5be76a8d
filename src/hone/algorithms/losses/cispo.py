"""Clipped importance sampling: the ratio weighs a token, and carries no gradient."""

from __future__ import annotations

from torch import Tensor

from hone.algorithms.losses.ratio import importance_ratio


def cispo(
    logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor, eps_high: float = 5.0
) -> tuple[Tensor, Tensor]:
    """Compute REINFORCE weighted by a capped ratio (CISPO, arXiv:2506.13585; ScaleRL, arXiv:2510.13786).

    loss_t = -sg(min(r_t, eps_high)) A_t log pi(o_t)       sg: without gradient

    Unlike PPO's clip, the cap removes no token's gradient, so rare but decisive tokens are still learned. `eps_high`
    bounds the ratio, not its distance from 1, as in TRL and in ScaleRL's code.

    Returns the loss `[M]` and a bool `[M]` that is True where the ratio is capped.
    """
    ratio_M = importance_ratio(logprobs_M, old_logprobs_M).detach()
    return -ratio_M.clamp(max=eps_high) * advantages_M * logprobs_M, ratio_M > eps_high
