from __future__ import annotations

from hone.environments.data import Draws, epoch_order


def test_each_epoch_is_a_permutation_and_differs_from_the_next_and_from_other_seeds():
    first = epoch_order(50, 0, 0).tolist()
    assert sorted(first) == list(range(50))
    assert first != list(range(50))
    assert epoch_order(50, 0, 1).tolist() != first
    assert epoch_order(50, 1, 0).tolist() != first
    assert epoch_order(50, 0, 0).tolist() == first


def test_the_order_is_fixed_for_ever():
    """A checkpoint stores the number of draws only: another order would make it resume elsewhere."""
    assert epoch_order(8, 0, 0).tolist() == [7, 3, 0, 1, 2, 6, 5, 4]
    assert epoch_order(8, 0, 3).tolist() == [0, 5, 1, 3, 2, 6, 4, 7]


def test_draws_visit_each_example_once_per_epoch_in_any_order_of_asking():
    draws = Draws(7, seed=3)
    seen = [draws.index(d) for d in range(21)]
    for epoch in range(3):
        assert seen[7 * epoch : 7 * epoch + 7] == epoch_order(7, 3, epoch).tolist()
    assert [Draws(7, seed=3).index(d) for d in (20, 0, 13)] == [seen[20], seen[0], seen[13]]
    assert isinstance(seen[0], int)
