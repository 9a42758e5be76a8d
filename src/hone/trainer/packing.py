"""Packing, for SFT and RL: sequences are laid end to end in flat batches, without padding.

Token weights refer to the whole step, so a split into micro-batches changes the gradient only by rounding. Attention
never crosses from one sequence to another.

With `share_prompts` (for RL), each micro-batch computes a prompt once, and the completions' segments continue it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

import numpy as np
import torch

from hone.model.device import upload
from hone.trainer import MICRO_BATCH_TOKENS
from hone.trainer.parallel import ALONE, Ranks
from hone.types import Columns, Counts, PackedBatch, joined, where


@dataclass(frozen=True)
class Sequence:
    """One sequence to train on: `token_ids` `[T]` int; `loss_mask` `[T]` bool, True where a token is learned.

    `logprobs` `[T]` float32: under the sampling distribution (RL only; by default 0). `advantage`: one number, or `[T]`
    float32. `group`, `sample` and `pool`: indices of the prompt, completion and task. `weight`: of each token in the
    loss; by default 1 / (loss tokens of the step). `reward` is used for the KL in the reward.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray | None = None
    advantage: float | np.ndarray = 0.0
    group: int = 0
    sample: int = 0
    weight: float | None = None
    columns: Columns = field(default_factory=dict)
    reward: float | None = None
    pool: int = 0

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        assert length > 0 and len(self.loss_mask) == length and self.loss_mask.dtype == np.bool_
        assert not self.loss_mask[0], "a first token has no context to be predicted from"
        assert self.logprobs is None or len(self.logprobs) == length
        assert np.shape(self.advantage) in ((), (length,))
        assert all(len(column) == length for column in self.columns.values())

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_loss_tokens(self) -> int:
        return int(self.loss_mask.sum())

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the first loss token; 0 if no token has loss."""
        return int(self.loss_mask.argmax())


@dataclass(frozen=True)
class Batch:
    """A step's sequences. `filtered`: counts left out for equal rewards; `longest`: longest completion's length."""

    sequences: list[Sequence]
    filtered: Counts = field(default_factory=Counts)
    longest: int = 1


@dataclass(frozen=True)
class _Segment:
    """Tokens `start` to `stop` of a sequence. `parent`: index of the segment that this segment continues, or -1."""

    sequence: Sequence
    start: int
    stop: int
    parent: int = -1
    shared: bool = False

    def __len__(self) -> int:
        return self.stop - self.start


def prompt_runs(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Split into runs of consecutive sequences with a common prompt: same group, and equal tokens before the loss."""
    return [list(run) for _, run in groupby(sequences, lambda s: (s.group, s.token_ids[: s.prompt_length].tobytes()))]


def run_tokens(run: list[Sequence]) -> int:
    """Count the tokens of sequences that share a prompt. The prompt counts once."""
    return sum(len(sequence) for sequence in run) - (len(run) - 1) * run[0].prompt_length


def _segments(runs: list[list[Sequence]]) -> list[_Segment]:
    """Make a segment for each sequence; before a run of several sequences, make a segment for their prompt."""
    segments: list[_Segment] = []
    for run in runs:
        prompt = run[0].prompt_length
        if len(run) == 1 or prompt == 0:
            segments += [_Segment(sequence, 0, len(sequence)) for sequence in run]
            continue
        parent = len(segments)
        segments.append(_Segment(run[0], 0, prompt, shared=True))
        segments += [_Segment(sequence, prompt, len(sequence), parent) for sequence in run]
    return segments


def pack(
    sequences: list[Sequence],
    num_loss_tokens: int | None = None,
    device: torch.device | str = "cpu",
    share_prompts: bool = False,
    minibatch: int = 0,
) -> PackedBatch:
    """Lay sequences end to end, in order. `num_loss_tokens`: of the whole step, if the step has other sequences."""
    assert sequences, "nothing to pack"
    segments = _segments(prompt_runs(sequences) if share_prompts else [[sequence] for sequence in sequences])
    lengths_S = np.array([len(segment) for segment in segments])
    starts_S = np.cumsum(lengths_S) - lengths_S

    def cut(values: Callable[[Sequence], np.ndarray], dtype: type) -> np.ndarray:
        return np.concatenate([values(s.sequence)[s.start : s.stop] for s in segments]).astype(dtype, copy=False)

    previous_N = np.arange(lengths_S.sum()) - 1
    previous_N[starts_S] = [-1 if s.parent < 0 else starts_S[s.parent] + s.start - 1 for s in segments]
    loss_mask_N = cut(lambda s: s.loss_mask, np.bool_)
    shares = any(segment.shared for segment in segments)
    if num_loss_tokens is None:
        num_loss_tokens = sum(sequence.num_loss_tokens for sequence in sequences)
    even = 1 / max(1, num_loss_tokens)
    weights_S = np.array([even if (w := s.sequence.weight) is None else w for s in segments], dtype=np.float32)
    loss_lengths_S = np.add.reduceat(loss_mask_N, starts_S, dtype=np.int64)
    return PackedBatch(
        token_ids=upload(cut(lambda s: s.token_ids, np.int64), device),
        positions=upload(np.concatenate([np.arange(s.start, s.stop) for s in segments]), device),
        previous=upload(previous_N, device),
        sampling_logprobs=upload(
            cut(lambda s: np.zeros(len(s)) if s.logprobs is None else s.logprobs, np.float32), device
        ),
        advantages=upload(np.concatenate([_advantages(s) for s in segments]), device),
        weights=upload(np.repeat(weights_S, lengths_S), device),
        loss_indices=upload(np.flatnonzero(loss_mask_N), device),
        sequence_lengths=upload(loss_lengths_S[loss_lengths_S > 0], device),
        lengths=tuple(lengths_S.tolist()),
        loss_lengths=tuple(loss_lengths_S.tolist()),
        groups=tuple(segment.sequence.group for segment in segments),
        samples=tuple(-1 if segment.shared else segment.sequence.sample for segment in segments),
        num_loss_tokens=num_loss_tokens,
        rewards=tuple(segment.sequence.reward for segment in segments),
        pools=tuple(segment.sequence.pool for segment in segments),
        minibatch=minibatch,
        parents=tuple(segment.parent for segment in segments) if shares else None,
        columns=joined([(int(n), _loss_columns(segment)) for n, segment in zip(loss_lengths_S, segments, strict=True)]),
    )


def _loss_columns(segment: _Segment) -> Columns:
    sequence = segment.sequence
    places = np.arange(len(sequence))
    return where(sequence.columns, sequence.loss_mask & (segment.start <= places) & (places < segment.stop))


def _advantages(segment: _Segment) -> np.ndarray:
    advantage = np.asarray(0.0 if segment.shared else segment.sequence.advantage, dtype=np.float32)
    return np.broadcast_to(advantage, len(segment.sequence))[segment.start : segment.stop]


def deal(
    sequences: list[Sequence],
    max_tokens: int | None,
    device: torch.device | str = "cpu",
    share_prompts: bool = False,
    ranks: Ranks = ALONE,
    minibatches: int = 1,
) -> list[PackedBatch]:
    """Cut a step's sequences, in order, into micro-batches of at most `max_tokens` tokens. Return this rank's share.

    All ranks pass all sequences of the step. If `max_tokens` is None, `device` sets it. A longer sequence has a
    micro-batch for itself. Sequences that share a prompt stay together if they fit; the prompt counts once.
    Micro-batches don't mix minibatches. All ranks get the same number of micro-batches, as few as possible and of about
    equal size. If there are too few sequences, some micro-batches have no loss.
    """
    max_tokens = max_tokens or MICRO_BATCH_TOKENS[torch.device(device).type]
    total = sum(sequence.num_loss_tokens for sequence in sequences)
    dealt = []
    for number, members in enumerate(split_minibatches(sequences, minibatches)):
        batches = cut_evenly(members, max_tokens, share_prompts, ranks.world)
        mine = [pack(batch, total, device, share_prompts, number) for batch in batches[ranks.rank :: ranks.world]]
        if len(mine) < -(-len(batches) // ranks.world):
            nothing = Sequence(members[0].token_ids[:1], np.zeros(1, dtype=np.bool_))
            mine.append(pack([nothing], total, device, minibatch=number))
        dealt += mine
    return dealt


def split_minibatches(sequences: list[Sequence], count: int) -> list[list[Sequence]]:
    """Split a step's sequences, in order, into `count` minibatches, none empty, with about equal numbers of prompts.

    Each minibatch gets an update, so the weights of tokens are multiplied by `count`.
    """
    groups = [list(members) for _, members in groupby(sequences, lambda sequence: sequence.group)]
    if count == 1 or len(groups) < 2:
        return [sequences] if sequences else []
    count = min(count, len(groups))
    total = max(1, sum(sequence.num_loss_tokens for sequence in sequences))
    cuts = [len(groups) * number // count for number in range(count + 1)]
    return [
        [
            replace(s, weight=count * (1 / total if s.weight is None else s.weight))
            for group in groups[a:b]
            for s in group
        ]
        for a, b in pairwise(cuts)
    ]


def _cut(runs: list[list[Sequence]], max_tokens: int) -> list[list[Sequence]]:
    """Cut runs, in order, into batches of at most `max_tokens` tokens. A longer sequence is alone in a batch. A run
    that fits is not split."""
    batches: list[list[Sequence]] = []
    tokens = 0
    for run in runs:
        for part in [run] if run_tokens(run) <= max_tokens else _cut_run(run, max_tokens):
            if not batches or tokens + run_tokens(part) > max_tokens:
                batches.append([])
                tokens = 0
            batches[-1] += part
            tokens += run_tokens(part)
    return batches


def cut_evenly(sequences: list[Sequence], max_tokens: int, share_prompts: bool, world: int) -> list[list[Sequence]]:
    """Cut a step's sequences into micro-batches. Rank r of `world` takes micro-batches r, r + world, r + 2 world, …

    There are as few micro-batches a rank as `max_tokens` allows, and then the largest is as small as possible.
    """
    runs = prompt_runs(sequences) if share_prompts else [[sequence] for sequence in sequences]
    if world == 1:
        return _cut(runs, max_tokens)
    rounds = -(-len(_cut(runs, max_tokens)) // world)
    low, high = 0, max_tokens  # the smallest limit is above `low`, and at most `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_cut(runs, middle)) <= rounds * world else (middle, high)
    return _cut(runs, high)


def _cut_run(run: list[Sequence], max_tokens: int) -> list[list[Sequence]]:
    parts: list[list[Sequence]] = [[]]
    for sequence in run:
        if parts[-1] and run_tokens([*parts[-1], sequence]) > max_tokens:
            parts.append([])
        parts[-1].append(sequence)
    return parts


class RowPacker:
    """Packs a stream of sequences into rows of `row_tokens` tokens, first-fit, until a sequence fits into no row.

    Sequences are taken strictly in order, so a position in the stream tells where the next step continues.
    """

    def __init__(self, num_rows: int, row_tokens: int) -> None:
        self.row_tokens = row_tokens
        self.rows: list[list[Sequence]] = [[] for _ in range(num_rows)]
        self.free = [row_tokens] * num_rows

    def add(self, sequence: Sequence) -> bool:
        assert len(sequence) <= self.row_tokens, "longer than a row: the data source checks this"
        for row, free in enumerate(self.free):
            if len(sequence) <= free:
                self.rows[row].append(sequence)
                self.free[row] -= len(sequence)
                return True
        return False

    def sequences(self) -> list[Sequence]:
        return [sequence for row in self.rows for sequence in row]
