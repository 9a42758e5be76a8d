"""Rollouts of one segment, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hone.types import Columns, Message, Rollout, Segment


def rollout_of(
    token_ids: np.ndarray,
    sampled_mask: np.ndarray,
    logprobs: np.ndarray,
    versions: np.ndarray,
    messages: list[Message],
    stop_reason: str,
    sample_id: str,
    *,
    columns: Columns | None = None,
    turn_rewards: np.ndarray | None = None,
    **facts: Any,
) -> Rollout:
    """A rollout with these tokens; `facts` are its other fields."""
    tokens = token_ids, sampled_mask, logprobs, versions
    segment = Segment(*tokens, messages, stop_reason, columns or {}, turn_rewards)
    return Rollout(sample_id, messages, stop_reason, (segment,), **facts)


def one_token(messages: list[Message], stop_reason: str = "length", sample_id: str = "s") -> Rollout:
    """A rollout of which one token was sampled."""
    zeros, versions = np.zeros(2, dtype=np.float32), np.array([-1, 0], dtype=np.int32)
    return rollout_of(np.array([1, 2]), np.array([False, True]), zeros, versions, messages, stop_reason, sample_id)


def with_first(rollout: Rollout, **changes: Any) -> Rollout:
    """The rollout with another first segment."""
    return replace(rollout, segments=(replace(rollout.first, **changes), *rollout.segments[1:]))
