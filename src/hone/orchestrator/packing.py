"""From groups to the micro-batches of a train step."""

from __future__ import annotations

from collections.abc import Sequence as SequenceABC

import torch

from hone.orchestrator.groups import group_state
from hone.trainer.packing import Sequence, split_micro_batches
from hone.types import Group, PackedBatch


def micro_batches(
    sequences: SequenceABC[Sequence], max_tokens: int | None, device: torch.device | str = "cpu"
) -> list[PackedBatch]:
    """Micro-batches of at most `max_tokens` tokens, in the order of the completions; empty of none.

    Completions of a group share its prompt, which is computed once; `max_tokens` None is what suits `device`.
    """
    return split_micro_batches(list(sequences), max_tokens, device, share_prompts=True) if sequences else []


def trainable(groups: SequenceABC[Group], truncated: str) -> list[Sequence]:
    """The completions that a step is trained on, in the order of the groups.

    Left out: groups that are filtered or failed, samples whose grading failed, and, with `truncated` = "mask",
    completions that were stopped by length. Every token that the policy sampled carries loss, the stop token included.
    """
    return [
        Sequence(
            token_ids=trajectory.token_ids,
            loss_mask=trajectory.sampled_mask,
            logprobs=trajectory.logprobs,
            versions=trajectory.versions,
            advantage=float(group.advantages[index]),
            group=group.draw,
            sample=index,
        )
        for group in groups
        if group_state(group) == "trained"
        for index, (trajectory, score) in enumerate(zip(group.trajectories, group.scores, strict=True))
        if not score.outcome.is_failure and not (truncated == "mask" and trajectory.truncated)
    ]
