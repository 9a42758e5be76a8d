"""Group sequence policy optimisation: one ratio for a whole completion."""

from __future__ import annotations

from torch import Tensor

from hone.algorithms.losses.clip import clipped_surrogate
from hone.algorithms.losses.ratio import log_ratio, sequence_means, spread


def gspo(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    lengths_S: Tensor,
    eps_low: float = 3e-4,
    eps_high: float = 4e-4,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the clipped surrogate of a completion's ratio (GSPO, arXiv:2507.18071).

    s = exp(mean over t of log r_t)       loss_t = -min(s A, clip(s, 1 - eps_low, 1 + eps_high) A)

    As a mean of logs, not a sum, log s does not grow with the completion's length. So the clip range of s is a thousand
    times narrower than a token's. All tokens of a completion have the same loss, so aggregate it by "sequence".
    `lengths_S` int64: the number of loss tokens of each completion, in order.

    Returns the loss `[M]` and a bool `[M]` that is True where a clip removes the gradient.
    """
    means_S = sequence_means(log_ratio(logprobs_M, old_logprobs_M), lengths_S)
    ratio_M = spread(means_S.exp(), lengths_S, len(logprobs_M))
    return clipped_surrogate(ratio_M, advantages_M, eps_low, eps_high, dual_clip)
