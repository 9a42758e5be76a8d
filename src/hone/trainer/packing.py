"""Packing: sequences laid end to end in flat batches, without padding. SFT and RL pack alike.

A micro-batch is what one forward and backward pass sees; all micro-batches of a step share one denominator, so
splitting a step changes its gradient only by rounding. A row is a budget of tokens, not a shape: sequences never
straddle two rows, and attention never crosses from one sequence to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hone.types import PackedBatch


@dataclass(frozen=True)
class Sequence:
    """One sequence to train on: `token_ids` `[T]` int; `loss_mask` `[T]` bool, True where a token is learned.

    `logprobs` `[T]` float32 under the sampling distribution and `versions` `[T]` int of the sampling policy (RL only;
    by default 0 and -1); `advantage` weighs the whole sequence; `group` and `sample` number its prompt and completion.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray | None = None
    versions: np.ndarray | None = None
    advantage: float = 0.0
    group: int = 0
    sample: int = 0

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        assert length > 0 and len(self.loss_mask) == length and self.loss_mask.dtype == np.bool_
        assert not self.loss_mask[0], "a first token has no context to be predicted from"
        assert self.logprobs is None or len(self.logprobs) == length
        assert self.versions is None or len(self.versions) == length

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_loss_tokens(self) -> int:
        return int(self.loss_mask.sum())


def pack(
    sequences: list[Sequence], num_loss_tokens: int | None = None, device: torch.device | str = "cpu"
) -> PackedBatch:
    """Lay sequences end to end in the order given, on `device`.

    `num_loss_tokens` is the denominator of the whole step; by default these sequences are the whole step.
    """
    assert sequences, "nothing to pack"
    lengths_S = np.array([len(sequence) for sequence in sequences])

    def join(parts: list[np.ndarray], dtype: type) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(dtype, copy=False)).to(device)

    def spread(values_S: list[int] | list[float] | np.ndarray, dtype: type) -> torch.Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values_S, dtype=dtype), lengths_S)).to(device)

    if num_loss_tokens is None:
        num_loss_tokens = sum(sequence.num_loss_tokens for sequence in sequences)
    return PackedBatch(
        token_ids=join([sequence.token_ids for sequence in sequences], np.int64),
        positions=join([np.arange(length) for length in lengths_S], np.int64),
        segment_ids=spread(np.arange(len(sequences)), np.int64),
        loss_mask=join([sequence.loss_mask for sequence in sequences], np.bool_),
        sampling_logprobs=join([_or_full(s.logprobs, len(s), 0.0) for s in sequences], np.float32),
        advantages=spread([sequence.advantage for sequence in sequences], np.float32),
        group_ids=spread([sequence.group for sequence in sequences], np.int64),
        sample_ids=spread([sequence.sample for sequence in sequences], np.int64),
        versions=join([_or_full(s.versions, len(s), -1) for s in sequences], np.int64),
        num_loss_tokens=num_loss_tokens,
    )


def _or_full(values: np.ndarray | None, length: int, default: float) -> np.ndarray:
    return np.full(length, default) if values is None else values


def split_micro_batches(
    sequences: list[Sequence], max_tokens: int, device: torch.device | str = "cpu"
) -> list[PackedBatch]:
    """Cut a step's sequences, in order, into micro-batches of at most `max_tokens` tokens.

    A sequence longer than that is a micro-batch of its own (a sequence is never cut). Every micro-batch carries the
    step's `num_loss_tokens`, so the sum of their losses is the mean over the step.
    """
    assert max_tokens >= 1
    total = sum(sequence.num_loss_tokens for sequence in sequences)
    batches: list[list[Sequence]] = []
    tokens = 0
    for sequence in sequences:
        if not batches or tokens + len(sequence) > max_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(sequence)
        tokens += len(sequence)
    return [pack(batch, total, device) for batch in batches]


class RowPacker:
    """First-fit packing of a stream into a fixed number of rows of `row_tokens` tokens each.

    All rows stay open until a sequence fits in none, so gaps fill up later; and the stream is taken strictly in order:
    what was taken is a prefix of it, so one number says where the next step goes on.
    """

    def __init__(self, num_rows: int, row_tokens: int) -> None:
        self.row_tokens = row_tokens
        self.rows: list[list[Sequence]] = [[] for _ in range(num_rows)]
        self.free = [row_tokens] * num_rows

    def add(self, sequence: Sequence) -> bool:
        """Put the sequence in the first row with room for it; False (and nothing changed) if there is none."""
        assert len(sequence) <= self.row_tokens, "longer than a row: the data source checks this"
        for row, free in enumerate(self.free):
            if len(sequence) <= free:
                self.rows[row].append(sequence)
                self.free[row] -= len(sequence)
                return True
        return False

    def sequences(self) -> list[Sequence]:
        """What was added, row after row."""
        return [sequence for row in self.rows for sequence in row]
