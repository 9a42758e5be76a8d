"""Group-relative advantages: the other completions of the same prompt are the baseline."""

from __future__ import annotations

import numpy as np

ZERO_VARIANCE = 1e-6
"""A group whose rewards span no more than this carries no signal (max - min over the group; std would hide rounding).
"""


def has_signal(rewards_G: np.ndarray) -> bool:
    """Return True if the rewards of a group differ: max - min > 1e-6. Fewer than two rewards carry no signal."""
    return len(rewards_G) >= 2 and float(np.max(rewards_G) - np.min(rewards_G)) > ZERO_VARIANCE


def group_advantages(
    rewards_G: np.ndarray,
    valid_G: np.ndarray,
    normalize_std: bool = False,
    std_ddof: int = 0,
    std_eps: float = 1e-6,
) -> np.ndarray:
    """Compute the advantages `[G]` float32 of one group.

    A_i = r_i - mean(r)                           Dr. GRPO (arXiv:2503.20783)
    A_i = (r_i - mean(r)) / (std(r) + std_eps)    GRPO (arXiv:2402.03300), with `normalize_std`

    std divides the sum of squares by G - `std_ddof`; TRL has `std_ddof` 1 and `std_eps` 1e-4.

    `valid_G` is False where grading failed: those leave mean and std, and get advantage 0. A group without signal gets
    0s.
    """
    rewards_G = np.asarray(rewards_G, dtype=np.float64)
    valid_rewards = rewards_G[valid_G]
    if not has_signal(valid_rewards):
        return np.zeros(len(rewards_G), dtype=np.float32)
    scale = valid_rewards.std(ddof=std_ddof) + std_eps if normalize_std else 1.0
    advantages_G = np.where(valid_G, rewards_G - valid_rewards.mean(), 0.0) / scale
    return advantages_G.astype(np.float32)
