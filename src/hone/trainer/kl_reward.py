"""KL in the reward: a completion's KL to the reference lowers its reward before advantages are computed.

The orchestrator computes advantages from rewards only. The trainer has the reference's logprobs, and adds the KL's
effect to the advantages. Rewards of masked completions count in the baseline; their KLs don't.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from hone.algorithms.advantages import advantages, advantages_to_go
from hone.algorithms.losses.ratio import log_ratio
from hone.model.device import upload
from hone.trainer.parallel import Ranks
from hone.types import PackedBatch

if TYPE_CHECKING:
    from hone.config.algorithms import AdvantageConfig


@dataclass(frozen=True)
class RewardKL:
    """`coef`: weight of the KL; `rollouts`: completions per prompt; `advantage`: how advantages are computed.

    With the scale "token_std", each token has a separate advantage, from the KL of this token and all later tokens.
    """

    coef: float
    rollouts: int
    advantage: AdvantageConfig


@dataclass(frozen=True)
class _Sequence:
    """A completion: indices of task (`pool`), prompt (`group`) and sample, reward, and the loss tokens' KL `[T]`."""

    pool: int
    group: int
    sample: int
    reward: float
    kl_T: np.ndarray


@torch.no_grad()
def with_kl_in_reward(batches: list[PackedBatch], how: RewardKL, ranks: Ranks) -> list[PackedBatch]:
    """Return a step's micro-batches with advantages computed from reward - coef · KL. All ranks must call this.

    A token's KL is log pi_old - log pi_ref (k1); a completion's KL is the sum (RLOO, arXiv:2402.14740).
    """
    parts = []
    for batch in batches:
        indices_M = batch.loss_indices
        old = batch.sampling_logprobs if batch.old_logprobs is None else batch.old_logprobs
        assert batch.ref_logprobs is not None
        kl_M = log_ratio(old, batch.ref_logprobs)[indices_M]
        parts.append(torch.where(old[indices_M].isfinite(), kl_M, 0.0))
    kl_N = torch.cat(parts).cpu().double().numpy() if parts else np.zeros(0)

    here, start = list[_Sequence](), 0
    for batch in batches:
        columns = zip(batch.pools, batch.groups, batch.samples, batch.rewards, batch.loss_lengths, strict=True)
        for pool, group, sample, reward, length in columns:
            if length:
                assert reward is not None, "the KL in the reward needs rewards"
                here.append(_Sequence(pool, group, sample, reward, kl_N[start : start + length]))
                start += length
    step = sorted(chain(*ranks.collect(here)), key=lambda one: (one.pool, one.group, one.sample))
    changes = dict[tuple[int, int], np.ndarray]()
    for _, members in groupby(step, key=lambda one: one.pool):
        changes |= _changes(list(members), how)

    sequences, shifted = iter(here), []
    for batch in batches:
        count = sum(length > 0 for length in batch.loss_lengths)
        found = [changes[one.group, one.sample] for one in islice(sequences, count)]
        shift_M = upload(np.concatenate([*found, np.zeros(0)]).astype(np.float32), batch.advantages.device)
        shifted.append(replace(batch, advantages=batch.advantages.index_add(0, batch.loss_indices, shift_M)))
    return shifted


def _changes(sequences: list[_Sequence], how: RewardKL) -> dict[tuple[int, int], np.ndarray]:
    """Map (group, sample) to `[T]`: what the KL adds to the tokens' advantages, for the sequences of one task.

    Branches of one completion share a reward, which the KLs of all branches lower.
    """
    rows = {group: row for row, group in enumerate(dict.fromkeys(one.group for one in sequences))}
    places = [(rows[one.group], one.sample % how.rollouts) for one in sequences]
    shape = len(rows), how.rollouts
    rewards_PG, kl_PG, tokens_PG = np.full(shape, np.nan), np.zeros(shape), np.zeros(shape, dtype=np.int64)
    for one, place in zip(sequences, places, strict=True):
        rewards_PG[place] = one.reward
        kl_PG[place] += one.kl_T.sum()
        tokens_PG[place] += len(one.kl_T)
    valid_PG, keys = ~np.isnan(rewards_PG), how.advantage
    settings = keys.baseline, keys.scale, keys.std_ddof, keys.std_eps
    before_PG = advantages(rewards_PG, valid_PG, *settings, tokens_PG).astype(np.float64)
    if keys.scale == "token_std":
        penalties = [how.coef * one.kl_T for one in sequences]
        after = advantages_to_go(rewards_PG, valid_PG, penalties, places, keys.baseline, keys.std_ddof, keys.std_eps)
    else:
        after_PG = advantages(rewards_PG - how.coef * kl_PG, valid_PG, *settings, tokens_PG).astype(np.float64)
        after = [np.full(len(one.kl_T), after_PG[place]) for one, place in zip(sequences, places, strict=True)]
    return {
        (one.group, one.sample): of_tokens - before_PG[place]
        for one, place, of_tokens in zip(sequences, places, after, strict=True)
    }
