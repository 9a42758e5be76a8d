"""Rollouts read back as the groups that a step was trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

import numpy as np

from hone.algorithms.advantages import group_advantages
from hone.config.rl import AdvantageConfig
from hone.errors import UserError
from hone.orchestrator.groups import rewards, valid
from hone.reproduce.compare import Row
from hone.types import Example, Group, Outcome, Score, Trajectory


def groups_of(rows: Sequence[Row], advantage: AdvantageConfig, vocab_size: int) -> list[Group]:
    """The groups of a step, as they were before they were written.

    Advantages are computed anew from the recorded rewards; everything else is as recorded. UserError for rows that no
    step can have written.
    """
    try:
        groups = _groups(rows, advantage, vocab_size)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        which = f"step {rows[0]['step']}" if rows else "a step"
        raise UserError(
            f"the rollouts of {which} are not such as hone writes ({type(error).__name__}: {error}), so they can't be "
            "trained on: compare them with another copy of the run"
        ) from error
    return groups


def _groups(rows: Sequence[Row], advantage: AdvantageConfig, vocab_size: int) -> list[Group]:
    ids = np.concatenate([row["token_ids"] for row in rows])
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError("a token id is not in the vocabulary")
    if not all(np.any(row["sampled_mask"]) for row in rows):
        raise ValueError("a sample has no token that was sampled")
    groups = []
    for draw, members in groupby(rows, key=lambda row: row["draw"]):
        of_group = list(members)
        row = of_group[0]
        example = Example(json.loads(row["prompt"]), row["answer"], json.loads(row["info"]), row["example_id"])
        scores = [_score(row) for row in of_group]
        advantages = group_advantages(rewards(scores), valid(scores), **advantage.model_dump())
        groups.append(Group(example, draw, [_trajectory(row) for row in of_group], scores, advantages))
    return groups


def _trajectory(row: Row) -> Trajectory:
    several = row.get("completion") is not None
    said = json.loads(row["completion"]) if several else [{"role": "assistant", "content": row["text"]}]
    return Trajectory(
        token_ids=np.array(row["token_ids"], dtype=np.int64),
        sampled_mask=np.array(row["sampled_mask"], dtype=np.bool_),
        logprobs=np.array(row["logprobs"], dtype=np.float32),
        versions=np.array(row["versions"], dtype=np.int32),
        messages=[*json.loads(row["prompt"]), *said],
        stop_reason=row["stop_reason"],
        sample_id=row["sample_id"],
        state={} if several else None,  # what the environment kept is not recorded, and no step needs it again
    )


def _score(row: Row) -> Score:
    reward = float("nan") if row["reward"] is None else row["reward"]
    return Score(reward, dict(row["components"]), dict(row["weights"]), Outcome(row["outcome"]), row["detail"] or "")
