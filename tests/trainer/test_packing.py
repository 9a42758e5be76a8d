"""Packing keeps every token, every per-token value and the order, and the step's denominator is global."""

import numpy as np
import torch

from hone.trainer.packing import RowPacker, Sequence, deal, pack


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
        advantage=0.5,
        group=7,
        sample=1,
    )
    batch = pack([first, sequence(2, start=20, advantage=-1.0, group=8, sample=2)])
    assert batch.token_ids.tolist() == [10, 11, 12, 20, 21]
    assert batch.positions.tolist() == [0, 1, 2, 0, 1]
    assert batch.lengths == (3, 2)
    assert batch.loss_indices.tolist() == [2, 4] and batch.loss_lengths == (1, 1)
    assert batch.sampling_logprobs.tolist() == [0, 0, -1.5, 0, 0]
    assert batch.advantages.tolist() == [0.5, 0.5, 0.5, -1.0, -1.0]
    assert batch.groups == (7, 8) and batch.samples == (1, 2)
    assert batch.num_loss_tokens == 2
    dtypes = {t.dtype for t in (batch.token_ids, batch.positions, batch.previous, batch.loss_indices)}
    assert dtypes == {torch.int64} and batch.advantages.dtype == batch.sampling_logprobs.dtype == torch.float32


def test_rows_are_filled_first_fit_and_say_when_they_are_full():
    rows = RowPacker(num_rows=2, row_tokens=10)
    assert [rows.add(sequence(n, start=100 * n)) for n in (6, 7, 4, 3, 2)] == [True, True, True, True, False]
    assert [len(s) for s in rows.sequences()] == [6, 4, 7, 3]
    assert rows.free == [0, 0]


def completion(prompt: list[int], ids: list[int], **values) -> Sequence:
    mask = np.arange(len(prompt) + len(ids)) >= len(prompt)
    return Sequence(np.array(prompt + ids), mask, np.where(mask, -1.0, 0.0).astype(np.float32), **values)


def test_a_shared_prompt_is_laid_down_once_before_its_completions():
    run = [
        completion([1, 2, 3], ids, advantage=a, group=5, sample=i)
        for i, (ids, a) in enumerate([([7, 8], 1), ([9], -1)])
    ]
    batch = pack([*run, completion([1, 2, 3], [6], advantage=0.5, group=6, sample=3)], share_prompts=True)
    assert batch.token_ids.tolist() == [1, 2, 3, 7, 8, 9, 1, 2, 3, 6]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 3, 0, 1, 2, 3]
    assert batch.previous.tolist() == [-1, 0, 1, 2, 3, 2, -1, 6, 7, 8]
    assert batch.lengths == (3, 2, 1, 4)
    assert batch.parents == (-1, 0, 0, -1)
    assert batch.loss_indices.tolist() == [3, 4, 5, 9] and batch.loss_lengths == (0, 2, 1, 1)
    assert batch.sampling_logprobs.tolist() == [0, 0, 0, -1, -1, -1, 0, 0, 0, -1]
    assert batch.advantages.tolist() == [0, 0, 0, 1, 1, -1, 0.5, 0.5, 0.5, 0.5]
    assert batch.groups == (5, 5, 5, 6) and batch.samples == (-1, 0, 1, 3)
    assert batch.num_loss_tokens == 4


def test_nothing_is_shared_unless_asked_for_or_between_different_prompts_or_groups():
    same = [completion([1, 2], [7], group=5), completion([1, 2], [8], group=5)]
    assert pack(same).parents is None and len(pack(same)) == 6
    for other in (
        completion([1, 3], [8], group=5),
        completion([1, 2, 8], [8], group=5),
        completion([1, 2], [8], group=6),
    ):
        batch = pack([same[0], other], share_prompts=True)
        assert batch.parents is None and len(batch) == len(same[0]) + len(other)


def test_micro_batches_keep_a_group_together_if_it_fits_and_count_its_prompt_once():
    def group(number: int, count: int) -> list[Sequence]:
        return [completion([1, 2, 3, 4], [i, i], group=number) for i in range(count)]

    sizes = {12: [10 + 0, 12, 8], 10: [10, 10, 6 + 0, 8]}
    for max_tokens, expected in sizes.items():
        batches = deal(group(0, 3) + group(1, 4) + group(2, 2), max_tokens, share_prompts=True)
        assert [len(batch) for batch in batches] == expected
        assert {batch.num_loss_tokens for batch in batches} == {18}
        samples = [t for b in batches for t in b.token_ids[b.loss_indices].tolist()]
        assert samples == [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1]
