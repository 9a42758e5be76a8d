"""From examples to scored groups: request, sample, grade, advantage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hone import rng
from hone.algorithms.advantages import group_advantages, has_signal
from hone.environments import Environment
from hone.errors import UserError
from hone.model.chat import ChatRenderer
from hone.orchestrator.ledger import State
from hone.orchestrator.types import Request
from hone.types import Example, Group, Score, Trajectory


def make_requests(
    examples: Sequence[Example],
    draws: Sequence[int],
    renderer: ChatRenderer,
    *,
    rollouts: int,
    seq_len: int,
    max_tokens: int | None,
    seed: int,
    purpose: str,
    step: int,
) -> list[Request]:
    """`rollouts` requests per example, group by group; randomness is keyed by (seed, purpose, step, draw, sample).

    A completion gets min(`max_tokens`, what the prompt leaves of `seq_len`). Raises UserError if it leaves nothing.
    """
    requests = []
    for example, draw in zip(examples, draws, strict=True):
        prompt_ids = tuple(renderer.prompt_ids(example.prompt))
        room = seq_len - len(prompt_ids)
        if room < 1:
            raise UserError(
                f"the prompt of example {example.id} has {len(prompt_ids)} tokens and leaves no room for a completion in "
                f"seq_len = {seq_len}; raise seq_len or drop the example from the data"
            )
        limit = room if max_tokens is None else min(max_tokens, room)
        for sample in range(rollouts):
            key = rng.key(seed, purpose, step, draw, sample)
            requests.append(Request(prompt_ids, example.prompt, key, f"{step}-{draw}-{sample}", limit))
    return requests


def grade_groups(
    env: Environment,
    examples: Sequence[Example],
    draws: Sequence[int],
    trajectories: Sequence[Trajectory],
    normalize_std: bool,
) -> list[Group]:
    """Scores the trajectories (given group by group) and computes each group's advantages."""
    size = len(trajectories) // len(examples)
    groups = []
    for index, (example, draw) in enumerate(zip(examples, draws, strict=True)):
        members = list(trajectories[index * size : (index + 1) * size])
        scores = [env.grade(example, trajectory) for trajectory in members]
        advantages = group_advantages(rewards(scores), valid(scores), normalize_std)
        groups.append(Group(example, draw, members, scores, advantages))
    return groups


def rewards(scores: Sequence[Score]) -> np.ndarray:
    """Rewards `[G]` float64, NaN where grading failed."""
    return np.array([score.reward for score in scores], dtype=np.float64)


def valid(scores: Sequence[Score]) -> np.ndarray:
    """Bool `[G]`: False where grading failed."""
    return np.array([not score.outcome.is_failure for score in scores], dtype=np.bool_)


def group_state(group: Group) -> State:
    """How the group's draw ends: `failed` if fewer than two samples could be graded, `filtered` without variance."""
    mask_G = valid(group.scores)
    if mask_G.sum() < 2:
        return "failed"
    return "trained" if has_signal(rewards(group.scores)[mask_G]) else "filtered"
