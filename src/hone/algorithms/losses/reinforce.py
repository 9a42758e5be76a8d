"""REINFORCE: the policy gradient itself."""

from __future__ import annotations

from torch import Tensor


def reinforce(logprobs_M: Tensor, advantages_M: Tensor) -> Tensor:
    """Compute loss_t = -A_t log pi(o_t) `[M]` (Williams 1992; for language models arXiv:2402.14740).

    Without a ratio, this is unbiased only for one update on tokens of the same policy. For stale tokens add an
    off-policy correction (`trainer.correction`); for several updates per batch use a loss with a ratio.
    """
    return -advantages_M * logprobs_M
