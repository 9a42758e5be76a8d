"""Per-token losses `[M]`, M the loss tokens of a micro-batch. The caller sums and divides by the step's token count.

Dividing by all loss tokens of the step (not per sequence) is the token-level loss of DAPO (arXiv:2503.14476): every
token weighs the same, so long completions are not favoured or punished for their length. An objective, at the end of
this file, is what one micro-batch contributes to the loss, and to the step's statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from hone.types import PackedBatch

if TYPE_CHECKING:
    from hone.config.rl import LossConfig

MAX_LOG_RATIO = 10.0
"""|log ratio| is clamped here before exp: a single token of a stale or broken sample must not overflow the batch."""
DUAL_CLIP = 3.0
"""The bound on the ratio of a stale token with a negative advantage, unless the config has one."""
Sums = dict[str, torch.Tensor]
Objective = Callable[[torch.Tensor, PackedBatch, torch.Tensor], tuple[torch.Tensor, Sums]]
"""(logprobs `[M]`, batch, indices `[M]` of the loss tokens) -> (summed loss, statistics summed over the M tokens).

A statistic named `…/max` is a maximum instead. The trainer divides sums by the step's token count.
"""


def nll_loss(logprobs_M: torch.Tensor) -> torch.Tensor:
    """Compute the negative log-likelihood of each target token `[M]`, for supervised fine-tuning."""
    return -logprobs_M


def importance_ratio(logprobs_M: torch.Tensor, old_logprobs_M: torch.Tensor) -> torch.Tensor:
    """Compute r_t = pi(o_t) / pi_old(o_t) `[M]`, with |log r_t| clamped to 10."""
    return (logprobs_M - old_logprobs_M).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def clipped_policy_loss(
    logprobs_M: torch.Tensor,
    old_logprobs_M: torch.Tensor,
    advantages_M: torch.Tensor,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    dual_clip: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute PPO's clipped surrogate with an asymmetric range (clip-higher, DAPO, arXiv:2503.14476).

    loss_t = -min(r_t A_t, clip(r_t, 1 - eps_low, 1 + eps_high) A_t)

    That leaves the ratio of a token with A_t < 0 unbounded above. With `dual_clip` c > 1 + eps_high its loss is at most
    -c A_t (dual-clip PPO, arXiv:1912.09729): a token whose probability has since grown c-fold has no gradient.

    Returns the loss `[M]` and a bool `[M]` that is True where a clip is active, so that the token has no gradient.
    """
    ratio_M = importance_ratio(logprobs_M, old_logprobs_M)
    unclipped_M = ratio_M * advantages_M
    clipped_M = ratio_M.clamp(1 - eps_low, 1 + eps_high) * advantages_M
    loss_M, active_M = -torch.minimum(unclipped_M, clipped_M), clipped_M < unclipped_M
    if dual_clip is None:
        return loss_M, active_M
    bounded_M = (advantages_M < 0) & (ratio_M > dual_clip)
    return torch.where(bounded_M, -dual_clip * advantages_M, loss_M), active_M | bounded_M


def k3_kl(logprobs_M: torch.Tensor, ref_logprobs_M: torch.Tensor) -> torch.Tensor:
    """Compute Schulman's k3 estimate of KL(pi || pi_ref) per token `[M]`: exp(d) - d - 1 with d = log pi_ref - log pi.

    Non-negative, unbiased under samples of pi (http://joschu.net/blog/kl-approx.html).
    """
    delta_M = (ref_logprobs_M - logprobs_M).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return delta_M.exp() - delta_M - 1


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
