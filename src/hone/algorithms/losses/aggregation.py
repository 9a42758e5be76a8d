"""Weights that combine token losses into the loss of a step.

A token's weight depends on its completion and on the whole step, not on its micro-batch or rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hone.types import Counts


def aggregation_weights(
    kind: str,
    tokens_S: Sequence[int],
    groups_S: Sequence[int],
    longest: int,
    filtered: Counts | None = None,
) -> np.ndarray:
    """Return each completion's token weight w `[S]` float64: the step's loss is Σ_s w_s Σ_t loss_t.

    "token"     1 / tokens of the step: each token counts the same (DAPO, arXiv:2503.14476)
    "sequence"  1 / (tokens of its completion x completions): each completion counts the same (GRPO, arXiv:2402.03300)
    "prompt"    1 / (tokens of its group x prompts): each prompt counts the same (ScaleRL, arXiv:2510.13786)
    "constant"  1 / (`longest` x completions), `longest` the most tokens that a completion may have: no length is
                favoured (Dr. GRPO, arXiv:2503.20783)

    `tokens_S`: loss tokens of each completion; `groups_S`: the index of its prompt. `filtered` counts groups without
    signal: they count in the step's tokens, completions and prompts, but their losses are 0.
    """
    tokens, groups = np.array(tokens_S, dtype=np.int64), np.array(groups_S, dtype=np.int64)
    if not len(tokens):
        return np.zeros(0)
    left_out = filtered or Counts()
    sequences = len(tokens) + left_out.sequences
    if kind == "token":
        return np.full(len(tokens), 1 / (tokens.sum() + left_out.tokens))
    if kind == "constant":
        return np.full(len(tokens), 1 / (longest * sequences))
    if kind == "sequence":
        return 1 / (np.maximum(tokens, 1) * sequences)
    _, group_S = np.unique(groups, return_inverse=True)
    of_group = np.bincount(group_S, weights=tokens)
    return 1 / (of_group[group_S] * (len(of_group) + left_out.prompts))
