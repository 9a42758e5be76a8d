"""prime-rl's loss: masks tokens by the difference, not the ratio, of their new and old probability."""

from __future__ import annotations

import torch
from torch import Tensor

from hone.algorithms.losses.ratio import log_ratio


def dppo(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    penalty: float = 1e-3,
) -> tuple[Tensor, Tensor]:
    """Compute the surrogate masked by the difference of probabilities (DPPO, arXiv:2602.04879; prime-rl's default).

    loss_t = -kept_t A_t r_t + penalty (log r_t)²
    kept_t = 0 where A_t > 0 and pi - pi_old > eps_high, or A_t <= 0 and pi - pi_old < -eps_low; else 1

    If a rare token's probability grows from 1e-6 to 1e-5, its ratio is 10, but the policy hardly changes. Therefore
    DPPO bounds the difference of the probabilities, and so the total variation between the policies.

    Returns the loss `[M]` and a bool `[M]` that is True where a token is masked: it has only the penalty's gradient.
    """
    log_ratio_M = log_ratio(logprobs_M, old_logprobs_M)
    moved_M = logprobs_M.detach().exp() - old_logprobs_M.exp()
    masked_M = torch.where(advantages_M > 0, moved_M > eps_high, moved_M < -eps_low)
    surrogate_M = torch.where(masked_M, 0.0, log_ratio_M.exp()) * advantages_M
    return penalty * log_ratio_M.square() - surrogate_M, masked_M
