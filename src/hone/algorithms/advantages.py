"""Advantages: how much better a completion was than the policy's average, from the rewards of a step.

Shapes: P prompts, G completions of each, K components of the reward. All functions take numpy arrays in float64.
`valid_PG` is False for a completion that could not be graded: it counts in no mean or std, and its advantage is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ZERO_VARIANCE = 1e-6
"""Rewards of a group carry no signal if max - min is at most this: the difference is rounding."""


def has_signal(rewards_G: np.ndarray) -> bool:
    """Return True if the rewards of a group differ: max - min > 1e-6. Fewer than two rewards carry no signal."""
    return len(rewards_G) >= 2 and float(np.max(rewards_G) - np.min(rewards_G)) > ZERO_VARIANCE


def advantages(
    rewards_PG: np.ndarray,
    valid_PG: np.ndarray,
    baseline: str = "group",
    scale: str = "none",
    std_ddof: int = 1,
    std_eps: float = 1e-4,
    tokens_PG: np.ndarray | None = None,
) -> np.ndarray:
    """Compute the advantages `[P, G]` float32: A = (r - baseline) / scale.

    baseline  "group"          mean of the prompt's rewards, r̄ (GRPO, arXiv:2402.03300)
              "leave_one_out"  mean of the prompt's other rewards: G/(G-1) (r - r̄) (RLOO, arXiv:2402.14740)
              "batch"          mean of all rewards of the step
    scale     "none"           1 (Dr. GRPO, arXiv:2503.20783)
              "group_std"      std of the prompt's rewards + std_eps (GRPO)
              "batch_std"      std of all rewards of the step + std_eps (Lite PPO, arXiv:2508.08221)
              "token_std"      A = (r - baseline - mean) / (std + std_eps): mean and std over the step's tokens, where
                               a completion has `tokens_PG` tokens (REINFORCE++, arXiv:2501.03262)
              "group_mean"     r̄; if r̄ <= 0 the group's advantages are 0 (MaxRL, arXiv:2602.02710)

    A std divides the sum of squares by n - `std_ddof`. In a group with equal rewards, or fewer than two, r - baseline
    is 0. With the baseline "batch", the whole step is one group.
    """
    if scale == "token_std":
        assert tokens_PG is not None
        deviations_PG = _advantages(rewards_PG, valid_PG, baseline, "none", std_ddof, std_eps)
        tokens_PG = np.where(valid_PG, tokens_PG, 0)
        mean, std = _moments(np.repeat(deviations_PG.reshape(-1), tokens_PG.reshape(-1)), std_ddof)
        found_PG = (deviations_PG - mean) / (std + std_eps) if std else np.zeros(valid_PG.shape)
        return np.where(valid_PG, found_PG, 0.0).astype(np.float32)
    return _advantages(rewards_PG, valid_PG, baseline, scale, std_ddof, std_eps).astype(np.float32)


def advantages_to_go(
    rewards_PG: np.ndarray,
    valid_PG: np.ndarray,
    penalties: Sequence[np.ndarray],
    completions: Sequence[tuple[int, int]],
    baseline: str,
    std_ddof: int,
    std_eps: float,
) -> list[np.ndarray]:
    """Compute each sequence's token advantages `[T]` float64, with a penalty for each token (REINFORCE++).

    A_t = (R_t - mean) / (std + std_eps)        R_t = r - baseline - Σ_{s >= t} penalty_s

    Mean and std are over all tokens of the step. Without penalties this is the scale "token_std" of `advantages`.
    `penalties` has an array `[T]` for each sequence, `completions` the (row, column) of its reward.
    """
    deviations_PG = _advantages(rewards_PG, valid_PG, baseline, "none", std_ddof, std_eps)
    returns = [
        deviations_PG[place] - np.cumsum(penalty_T[::-1], dtype=np.float64)[::-1]
        for penalty_T, place in zip(penalties, completions, strict=True)
    ]
    mean, std = _moments(np.concatenate(returns), std_ddof)
    return [(of_tokens - mean) / (std + std_eps) if std else np.zeros(len(of_tokens)) for of_tokens in returns]


def _moments(values_N: np.ndarray, std_ddof: int) -> tuple[float, float]:
    if len(values_N) <= std_ddof or not has_signal(values_N):
        return 0.0, 0.0
    return float(values_N.mean()), float(values_N.std(ddof=std_ddof))


def _advantages(
    rewards_PG: np.ndarray, valid_PG: np.ndarray, baseline: str, scale: str, std_ddof: int, std_eps: float
) -> np.ndarray:
    rewards_PG = np.where(valid_PG, np.asarray(rewards_PG, dtype=np.float64), np.nan)
    groups = [rewards_PG.reshape(-1)] if baseline == "batch" else list(rewards_PG)
    everything = rewards_PG[valid_PG]
    batch_std = everything.std(ddof=std_ddof) if len(everything) > std_ddof else 0.0
    rows = []
    for rewards in groups:
        known = rewards[~np.isnan(rewards)]
        if not has_signal(known) or (scale == "group_mean" and known.mean() <= 0):
            rows.append(np.zeros(len(rewards)))
            continue
        deviations = np.nan_to_num(rewards - known.mean())
        if baseline == "leave_one_out":
            deviations = deviations * len(known) / (len(known) - 1)
        divisor = {
            "none": 1.0,
            "group_std": known.std(ddof=std_ddof) + std_eps,
            "batch_std": batch_std + std_eps,
            "group_mean": known.mean(),
        }[scale]
        rows.append(deviations / divisor)
    return np.stack(rows).reshape(rewards_PG.shape)


def normalized_components(
    values_PGK: np.ndarray, weights_K: np.ndarray, valid_PG: np.ndarray, std_ddof: int = 1, std_eps: float = 1e-4
) -> np.ndarray:
    """Compute the advantages `[P, G]` float32 from reward components that are first normalised, then summed.

    GDPO (arXiv:2601.05242): normalise each component in its group, (component - mean) / (std + std_eps). Then take the
    weighted sum over the components, subtract its mean over the step, and divide by its std over the step + std_eps. So
    a component counts by its weight, however much it varies. NaN: the component abstained, and counts 0. If no
    component varies in a group, the group's advantages are 0.
    """
    values_PGK = np.where(valid_PG[:, :, None], np.asarray(values_PGK, dtype=np.float64), np.nan)
    sums_PG = np.zeros(valid_PG.shape)
    for values_PG, weight in zip(np.moveaxis(values_PGK, -1, 0), weights_K, strict=True):
        known_PG = ~np.isnan(values_PG)
        sums_PG += weight * _advantages(np.nan_to_num(values_PG), known_PG, "group", "group_std", std_ddof, std_eps)
    found_PG = _advantages(sums_PG, valid_PG, "batch", "batch_std", std_ddof, std_eps)
    return np.where(sums_PG.any(axis=1, keepdims=True), found_PG, 0.0).astype(np.float32)


def token_advantages(advantages_of_turns: Sequence[float] | np.ndarray, sampled_T: np.ndarray) -> np.ndarray:
    """Return `[T]` float32: for a sampled token the advantage of its turn (contiguous sampled tokens), else 0."""
    turn_T = np.cumsum(np.diff(sampled_T, prepend=False) & sampled_T)  # counted from 1
    return np.append(np.float32(0), np.asarray(advantages_of_turns, np.float32))[turn_T * sampled_T]


def reverse_kl(logprobs_T: np.ndarray, teacher_logprobs_T: np.ndarray) -> np.ndarray:
    """Compute log pi(o_t) - log pi_teacher(o_t) `[T]` float64, 0 where a logprob is not finite. Its mean over tokens
    that pi sampled estimates KL(pi || pi_teacher).
    """
    with np.errstate(invalid="ignore"):
        found_T = np.asarray(logprobs_T, dtype=np.float64) - teacher_logprobs_T
    return np.where(np.isfinite(found_T), found_T, 0.0)


def distilled(
    advantage: float, logprobs_T: np.ndarray, teacher_logprobs_T: np.ndarray, coef: float, reward_coef: float
) -> np.ndarray:
    """Compute token advantages `[T]` float32 for a completion that a teacher has scored.

    A_t = reward_coef A - coef (log pi(o_t) - log pi_teacher(o_t))

    On-policy distillation (Thinking Machines, 2025; GKD, arXiv:2306.13649): each token is charged with its reverse KL
    only, not with the reverse KL of later tokens. A is the completion's `advantage`. `logprobs_T` are the sampler's.
    Both logprobs are 0 where a token was not sampled.
    """
    return (reward_coef * advantage - coef * reverse_kl(logprobs_T, teacher_logprobs_T)).astype(np.float32)


def overlong_penalty(lengths: np.ndarray, limit: np.ndarray | int, buffer: int, penalty: float = 1.0) -> np.ndarray:
    """Compute the penalty on rewards of completions near the `limit` in tokens (DAPO, arXiv:2503.14476).

    The penalty is 0 up to limit - buffer tokens and grows linearly to `penalty` at the limit. If `buffer` is 0, only
    completions of `limit` tokens or more are penalised.
    """
    over = np.asarray(lengths, dtype=np.float64) - (limit - buffer)
    if buffer == 0:
        return penalty * (over >= 0)
    return penalty * np.clip(over / buffer, 0.0, 1.0)
