"""Token losses `[M]` (M: loss tokens of a micro-batch): one file for each loss, with formula and source.

A loss takes the policy's logprobs, its logprobs before the update (except `reinforce`), and advantages, all `[M]`.
Losses of whole completions also take `lengths_S`: how many loss tokens each completion has. `objective` combines losses
as a config says; `aggregation` weighs the tokens.
"""

from hone.algorithms.losses.aggregation import aggregation_weights
from hone.algorithms.losses.cispo import cispo
from hone.algorithms.losses.clip import clip
from hone.algorithms.losses.dppo import dppo
from hone.algorithms.losses.gspo import gspo
from hone.algorithms.losses.kl import kl_estimate
from hone.algorithms.losses.objective import Objective, Sums, TokenLoss, policy_objective, sft_objective
from hone.algorithms.losses.reinforce import reinforce
from hone.algorithms.losses.sapo import sapo

__all__ = [
    "Objective",
    "Sums",
    "TokenLoss",
    "aggregation_weights",
    "cispo",
    "clip",
    "dppo",
    "gspo",
    "kl_estimate",
    "policy_objective",
    "reinforce",
    "sapo",
    "sft_objective",
]
