"""Soft adaptive policy optimisation: a smooth gate instead of a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from hone.algorithms.losses.ratio import importance_ratio

TAU_POSITIVE = 1.0
TAU_NEGATIVE = 1.05
"""The paper's temperatures of the gate."""


def sapo(logprobs_M: Tensor, old_logprobs_M: Tensor, advantages_M: Tensor) -> Tensor:
    """Compute a surrogate with a gradient that fades as the ratio leaves 1 (SAPO, arXiv:2511.20347).

    loss_t = -4/τ σ(τ (r_t - 1)) A_t       τ = TAU_POSITIVE where A_t > 0, else TAU_NEGATIVE

    At r = 1 the gradient equals the gradient of -r A. The larger τ damps negative advantages sooner, because they raise
    many other tokens, while positive advantages raise one.

    Returns the loss `[M]`.
    """
    tau_M = torch.full_like(advantages_M, TAU_NEGATIVE).masked_fill_(advantages_M > 0, TAU_POSITIVE)
    ratio_M = importance_ratio(logprobs_M, old_logprobs_M)
    return -4 / tau_M * torch.sigmoid(tau_M * (ratio_M - 1)) * advantages_M
