"""Packing keeps every token, every per-token value and the order, and the step's denominator is global."""

import numpy as np
import pytest
import torch

from hone.trainer.packing import RowPacker, Sequence, pack, split_micro_batches


def sequence(length: int, start: int = 0, loss_from: int = 1, **values) -> Sequence:
    mask = np.zeros(length, dtype=bool)
    mask[loss_from:] = True
    return Sequence(np.arange(start, start + length), mask, **values)


def test_pack_lays_sequences_end_to_end_with_all_their_values():
    first = sequence(
        3,
        start=10,
        loss_from=2,
        logprobs=np.array([0, 0, -1.5], dtype=np.float32),
        versions=np.array([-1, -1, 4], dtype=np.int32),
        advantage=0.5,
        group=7,
        sample=1,
    )
    second = sequence(2, start=20, advantage=-1.0, group=8, sample=2)
    batch = pack([first, second])
    assert batch.token_ids.tolist() == [10, 11, 12, 20, 21]
    assert batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert batch.segment_ids.tolist() == [0, 0, 0, 1, 1]
    assert batch.loss_mask.tolist() == [False, False, True, False, True]
    assert batch.sampling_logprobs.tolist() == [0, 0, -1.5, 0, 0]
    assert batch.advantages.tolist() == [0.5, 0.5, 0.5, -1.0, -1.0]
    assert batch.group_ids.tolist() == [7, 7, 7, 8, 8]
    assert batch.sample_ids.tolist() == [1, 1, 1, 2, 2]
    assert batch.versions.tolist() == [-1, -1, 4, -1, -1]
    assert batch.num_loss_tokens == 2
    dtypes = {batch.token_ids.dtype, batch.positions.dtype, batch.segment_ids.dtype, batch.versions.dtype}
    assert dtypes == {torch.int64} and batch.advantages.dtype == batch.sampling_logprobs.dtype == torch.float32


def test_micro_batches_keep_order_and_share_the_step_s_denominator():
    sequences = [sequence(length, start=100 * i) for i, length in enumerate([4, 4, 3, 9, 2])]
    batches = split_micro_batches(sequences, max_tokens=8)
    assert [len(batch) for batch in batches] == [8, 3, 9, 2]
    joined = torch.cat([batch.token_ids for batch in batches]).tolist()
    assert joined == [t for s in sequences for t in s.token_ids.tolist()]
    assert {batch.num_loss_tokens for batch in batches} == {3 + 3 + 2 + 8 + 1}


def test_rows_are_filled_first_fit_and_say_when_they_are_full():
    rows = RowPacker(num_rows=2, row_tokens=10)
    assert [rows.add(sequence(n, start=100 * n)) for n in (6, 7, 4, 3, 2)] == [True, True, True, True, False]
    assert [len(s) for s in rows.sequences()] == [6, 4, 7, 3]
    assert rows.free == [0, 0]


def test_a_first_token_cannot_carry_loss():
    with pytest.raises(AssertionError, match="first token"):
        Sequence(np.array([1, 2]), np.array([True, True]))
