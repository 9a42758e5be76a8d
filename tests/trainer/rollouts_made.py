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


def with_first(rollout: Rollout, **changes: Any) -> Rollout:
    """The rollout with another first segment."""
    return replace(rollout, segments=(replace(rollout.first, **changes), *rollout.segments[1:]))
