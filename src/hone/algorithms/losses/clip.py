"""The clipped surrogate of PPO, as GRPO, DAPO and Dr. GRPO use it."""

from __future__ import annotations

import torch
from torch import Tensor

from hone.algorithms.losses.ratio import importance_ratio


def clip(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute PPO's clipped surrogate with an asymmetric range (arXiv:1707.06347; clip-higher: DAPO, arXiv:2503.14476).

    loss_t = -min(r_t A_t, clip(r_t, 1 - eps_low, 1 + eps_high) A_t)       r_t = pi(o_t) / pi_old(o_t)

    If A_t < 0, the loss grows with the ratio without a bound. With `dual_clip` c > 1 + eps_high it is at most -c A_t
    (dual-clip PPO, arXiv:1912.09729): such a token has no gradient once its probability has grown c-fold.

    Returns the loss `[M]` and a bool `[M]` that is True where a clip removes the gradient.
    """
    ratio_M = importance_ratio(logprobs_M, old_logprobs_M)
    return clipped_surrogate(ratio_M, advantages_M, eps_low, eps_high, dual_clip)


def clipped_surrogate(
    ratio_M: Tensor, advantages_M: Tensor, eps_low: float, eps_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the loss of `clip` from ratios `[M]`."""
    unclipped_M = ratio_M * advantages_M
    clipped_M = ratio_M.clamp(1 - eps_low, 1 + eps_high) * advantages_M
    loss_M, active_M = -torch.minimum(unclipped_M, clipped_M), clipped_M < unclipped_M
    if dual_clip is None:
        return loss_M, active_M
    bounded_M = (advantages_M < 0) & (ratio_M > dual_clip)
    return torch.where(bounded_M, -dual_clip * advantages_M, loss_M), active_M | bounded_M
