"""What one micro-batch contributes to the loss, and to the step's statistics."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hone.algorithms.losses import clipped_policy_loss, k3_kl, nll_loss
from hone.config.rl import LossConfig
from hone.types import PackedBatch

DUAL_CLIP = 3.0
"""The bound on the ratio of a stale token with a negative advantage, unless the config has one."""
Sums = dict[str, torch.Tensor]
Objective = Callable[[torch.Tensor, PackedBatch, torch.Tensor], tuple[torch.Tensor, Sums]]
"""(logprobs `[M]`, batch, indices `[M]` of the loss tokens) -> (summed loss, statistics summed over the M tokens).

A statistic named `…/max` is a maximum instead. The trainer divides sums by the step's token count.
"""


def sft_objective(logprobs_M: torch.Tensor, batch: PackedBatch, indices_M: torch.Tensor) -> tuple[torch.Tensor, Sums]:
    """Compute the cross-entropy of the completion tokens."""
    return nll_loss(logprobs_M).sum(), {}


def policy_objective(config: LossConfig, stale: bool = False) -> Objective:
    """Compute the clipped policy gradient, plus `kl_coef` x k3 KL to the reference if the batch has its logprobs.

    The ratio is that to the sampler's own probabilities, so it corrects for tokens of older versions (`stale`) and for
    a sampler that computes otherwise.
    """
    dual_clip = config.dual_clip or (DUAL_CLIP if stale else None)

    def objective(logprobs_M: torch.Tensor, batch: PackedBatch, indices_M: torch.Tensor) -> tuple[torch.Tensor, Sums]:
        sampling_M = batch.sampling_logprobs[indices_M]
        old_M = sampling_M if batch.old_logprobs is None else batch.old_logprobs[indices_M]
        loss_M, clipped_M = clipped_policy_loss(
            logprobs_M, old_M, batch.advantages[indices_M], config.eps_low, config.eps_high, dual_clip
        )
        with torch.no_grad():
            gap_M = (logprobs_M - sampling_M).abs()
        sums = {"logprob_gap/mean": gap_M.sum(), "logprob_gap/max": gap_M.max(), "clipped": clipped_M.sum()}
        if batch.ref_logprobs is not None:
            kl_M = k3_kl(logprobs_M, batch.ref_logprobs[indices_M])
            loss_M = loss_M + config.kl_coef * kl_M
            sums["kl"] = kl_M.detach().sum()
        return loss_M.sum(), sums

    return objective
