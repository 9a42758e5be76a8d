import dataclasses

import numpy as np
import pytest

from hone.extensions.split.transport import Order, decode, encode
from hone.extensions.split.wire import from_arrays, to_arrays
from hone.trainer.packing import Batch, Sequence, deal
from hone.types import Counts, Ragged


def sequences(count: int, seed: int = 0) -> list[Sequence]:
    rng = np.random.default_rng(seed)
    made = []
    for index in range(count):
        length = int(rng.integers(2, 9))
        mask = rng.random(length) < 0.5
        mask[0] = False
        made.append(
            Sequence(
                rng.integers(0, 151_936, length),
                mask,
                rng.normal(size=length).astype(np.float32),
                float(rng.normal()) / 3,
                2**40 + index // 2,
                index % 2,
            )
        )
    return made


def equal(ours: Sequence, theirs: Sequence) -> bool:
    for field in dataclasses.fields(Sequence):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(a, np.ndarray):
            if a.dtype != b.dtype or a.tobytes() != b.tobytes():
                return False
        elif a != b or type(a) is not type(b):
            return False
    return True


@pytest.mark.parametrize(
    ("count", "own", "rewarded"), [(0, False, False), (1, False, False), (5, False, True), (3, True, False)]
)
def test_sequences_go_through_a_file_bit_for_bit(tmp_path, count, own, rewarded):
    made = sequences(count)
    if rewarded:  # the KL is taken off the rewards, of each task apart
        made = [dataclasses.replace(one, reward=one.advantage / 7, pool=i // 2) for i, one in enumerate(made)]
    if own:  # each token has its advantage
        made = [dataclasses.replace(one, advantage=one.logprobs / 3) for one in made]
    (tmp_path / "order").write_bytes(encode(Order(3, "batch", to_arrays(Batch(made, Counts(5, 2, 1), 64)), tokens=9)))
    order = decode(Order, tmp_path / "order")
    assert (order.step, order.kind, order.save, order.tokens) == (3, "batch", None, 9)
    batch = from_arrays(order.arrays)
    back = batch.sequences
    assert (batch.filtered, batch.longest) == (Counts(5, 2, 1), 64)
    assert len(back) == count and all(map(equal, made, back))
    for ours, theirs in zip(deal(made, 12), deal(back, 12), strict=True):
        for field in dataclasses.fields(ours):
            a, b = getattr(ours, field.name), getattr(theirs, field.name)
            assert a is b or a == b if not hasattr(a, "dtype") else (a.dtype == b.dtype and a.equal(b)), field.name


def test_the_ids_that_a_token_was_sampled_among_are_sent_where_there_are_any():
    made = [dataclasses.replace(one, columns={"candidates": ids_of(one)}) for one in sequences(3)]
    for one, other in zip(made, from_arrays(to_arrays(Batch(made))).sequences, strict=True):
        ours, theirs = one.columns["candidates"], other.columns["candidates"]
        assert np.array_equal(ours.values, theirs.values) and np.array_equal(ours.counts, theirs.counts)
    without = to_arrays(Batch(sequences(3)))
    assert not [name for name in without if name.startswith("column")]
    assert all(s.columns == {} for s in from_arrays(without).sequences)


def ids_of(one: Sequence) -> Ragged:
    """Two ids for each token that was sampled, none for another."""
    return Ragged.of([[3, 5] if sampled else [] for sampled in one.loss_mask])
