"""pass@k: how likely it is that at least one of k completions is correct."""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate for one example from n completions: 1 - C(n - correct, k) / C(n, k) (Chen et al., 2021).

    The share of the k-subsets of the n completions that hold a correct one. Needs k ≤ n.
    """
    assert 0 <= correct <= n and 1 <= k <= n, (n, correct, k)
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def pass_at_ks(counts: Sequence[tuple[int, int]], rollouts: int) -> dict[int, float]:
    """Mean over examples for k = 1, 2, 4, … ≤ `rollouts`. `counts` holds (completions graded, of these correct).

    An example with fewer than k graded completions is left out of pass@k; a k without examples is absent.
    """
    result = {}
    k = 1
    while k <= rollouts:
        values = [pass_at_k(n, correct, k) for n, correct in counts if n >= k]
        if values:
            result[k] = sum(values) / len(values)
        k *= 2
    return result
