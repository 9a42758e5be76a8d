from __future__ import annotations

from itertools import combinations

import pytest

from hone.evaluation.passk import pass_at_k, pass_at_ks


@pytest.mark.parametrize(("n", "correct"), [(1, 0), (1, 1), (6, 0), (6, 2), (6, 5), (6, 6)])
def test_it_is_the_share_of_subsets_with_a_correct_completion(n: int, correct: int):
    hits = [True] * correct + [False] * (n - correct)
    for k in range(1, n + 1):
        subsets = list(combinations(hits, k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_powers_of_two_up_to_the_completions_and_the_mean_over_examples():
    assert pass_at_ks([(4, 4), (4, 1)], 4) == {1: 0.625, 2: 0.75, 4: 1.0}
    assert list(pass_at_ks([(6, 0)], 6)) == [1, 2, 4]


def test_examples_with_too_few_graded_completions_are_left_out_of_that_k():
    assert pass_at_ks([(4, 0), (1, 1), (0, 0)], 4) == {1: 0.5, 2: 0.0, 4: 0.0}
    assert pass_at_ks([(0, 0)], 2) == {}


def test_large_counts_do_not_overflow():
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5)
