"""Computes a micro-batch's part of a step's loss and statistics, with the loss that a config names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hone.algorithms import corrections
from hone.algorithms.losses.kl import kl_estimate
from hone.algorithms.losses.ratio import MAX_LOG_RATIO, importance_ratio
from hone.errors import UserError
from hone.types import PackedBatch

if TYPE_CHECKING:
    from hone.config.rl import CorrectionConfig, LossConfig

STALE_DUAL_CLIP = 3.0
"""Default bound on the ratio of a stale token with a negative advantage."""
Sums = dict[str, Tensor]
Objective = Callable[[Tensor, Tensor, PackedBatch, Tensor], tuple[Tensor, Sums]]
"""(logprobs `[M]`, entropies `[M]`, batch, indices `[M]` of the loss tokens) -> (loss, statistics).

The loss is the micro-batch's part of the step's loss: the sum of token losses times their weights in the batch.
Statistics are sums over the M tokens, which the trainer divides by the step's token count; a statistic named `…/max` is
a maximum instead.
"""
TokenLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Any]
"""(logprobs `[M]`, old logprobs `[M]`, advantages `[M]`, lengths `[S]`) -> loss `[M]`, or (loss, clipped `[M]`)."""


def sft_objective(
    logprobs_M: Tensor, entropies_M: Tensor, batch: PackedBatch, indices_M: Tensor
) -> tuple[Tensor, Sums]:
    """Compute the cross-entropy of the completion tokens: -log pi(o_t)."""
    return -(batch.weights[indices_M] * logprobs_M).sum(), {}


def token_loss(config: LossConfig, stale: bool = False) -> TokenLoss:
    """Return the loss function named by `config.type`, with parameters from the config."""
    loss: Callable[..., Any] = getattr(import_module(f"hone.algorithms.losses.{config.type}"), config.type)
    names = signature(loss).parameters
    low, high = config.range
    dual_clip = config.dual_clip or (STALE_DUAL_CLIP if stale else None)
    settings = {"eps_low": low, "eps_high": high, "dual_clip": dual_clip, "penalty": config.ratio_penalty}
    settings = {name: value for name, value in settings.items() if name in names}
    taken = "logprobs_M", "old_logprobs_M", "advantages_M", "lengths_S"
    return lambda *tensors: loss(
        **{name: x for name, x in zip(taken, tensors, strict=True) if name in names}, **settings
    )


def correction(config: CorrectionConfig) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    """Return a function (old logprobs `[M]`, sampler's logprobs `[M]`, lengths `[S]`) -> weights `[M]`, or None."""
    low, high = config.range
    return {
        "none": None,
        "token": lambda old, sampled, lengths: corrections.token_truncated(old, sampled, config.cap),
        "sequence": lambda old, sampled, lengths: corrections.sequence_truncated(old, sampled, lengths, config.cap),
        "band": lambda old, sampled, lengths: corrections.band(old, sampled, low, high),
        "geometric": lambda old, sampled, lengths: corrections.geometric_rejection(old, sampled, lengths, low, high),
    }[config.type]


def policy_objective(
    config: LossConfig,
    correct: CorrectionConfig | None = None,
    stale: bool = False,
    custom: TokenLoss | None = None,
) -> Objective:
    """Make a policy gradient's objective: the loss that `config` names, or `custom`, with KL and entropy terms.

    The ratio's old logprobs are the batch's `old_logprobs`, if it has them. Otherwise they are the sampler's, so that
    the ratio corrects for older versions (`stale`) and for another sampler; but with `old_policy` = "trainer", or with
    a correction, they are the policy's before the update. A token without a finite sampler's logprob has no loss.
    """
    loss_of = custom or token_loss(config, stale)
    weigh = correction(correct) if correct is not None else None

    def objective(
        logprobs_M: Tensor, entropies_M: Tensor, batch: PackedBatch, indices_M: Tensor
    ) -> tuple[Tensor, Sums]:
        now_M, lengths_S = logprobs_M.detach(), batch.sequence_lengths
        sampling_M = batch.sampling_logprobs[indices_M]
        finite_M = sampling_M.isfinite()
        sampling_M = torch.where(finite_M, sampling_M, now_M)
        old_M = sampling_M if weigh is None and config.old_policy == "sampler" else now_M
        if batch.old_logprobs is not None:
            old_M = batch.old_logprobs[indices_M]

        found = loss_of(logprobs_M, old_M, batch.advantages[indices_M], lengths_S)
        loss_M, clipped_M = found if isinstance(found, tuple) else (found, None)
        if loss_M.shape != logprobs_M.shape or (logprobs_M.requires_grad and not loss_M.requires_grad):
            raise UserError(
                f"the loss has the shape {tuple(loss_M.shape)}: return a number for each token, "
                f"{tuple(logprobs_M.shape)}, not summed and not detached"
            )
        gap_M = (now_M - sampling_M).abs()
        sums = {"logprob_gap/mean": gap_M.sum(), "logprob_gap/max": gap_M.max()}
        if clipped_M is not None:
            sums["clipped"] = clipped_M.sum()
        sums["dropped"] = (~finite_M).sum()
        sums["ratio_clamped"] = ((now_M - old_M).abs() > MAX_LOG_RATIO).sum()
        if weigh is not None:
            weights_M = weigh(old_M, sampling_M, lengths_S)
            loss_M = loss_M * weights_M
            sums["correction/mean"] = weights_M.sum()
            sums["correction/rejected"] = (weights_M == 0).sum()
        if batch.ref_logprobs is not None:
            in_loss = config.kl_in == "loss"
            new_M = logprobs_M if in_loss else now_M
            kl_M = kl_estimate(new_M, batch.ref_logprobs[indices_M], config.kl_estimator)
            sums["kl"] = kl_M.detach().sum()
            if in_loss:
                ratio_M = importance_ratio(logprobs_M, old_M) if config.kl_bias_correction else 1.0
                loss_M = loss_M + config.kl_coef * ratio_M * kl_M
        if config.entropy_coef:
            loss_M = loss_M - config.entropy_coef * entropies_M
        weighted_M = torch.where(finite_M, loss_M, 0.0) * batch.weights[indices_M]
        return weighted_M.sum(), sums

    return objective
