"""The vocabulary head on the fake GPU: its products, how often it goes through its weight's gradient, and its bytes."""

from __future__ import annotations

import pytest

from .conftest import report

pytestmark = pytest.mark.device


@pytest.mark.parametrize(
    ("cache", "products", "gradients"),
    [(512 * 2**20, [79, 237], 158), (5 * 2**30, [8, 2], 2)],
    ids=["as on a CPU", "as on 80 GB"],
)
def test_a_cache_for_all_tokens_saves_products_and_passes_over_the_gradient(
    cache: int, products: list[int], gradients: int
) -> None:
    """Of 16,384 tokens and V = 151,936, forward and backward; without the cache each chunk has three products.

    Logprobs are equal to the bit, gradients by relative norm: a stored softmax is rounded to bf16.
    """
    found = report("head_on_gpu.py", str(cache), "bf16_linear")
    assert (found["products"], found["gradients"]) == (products, gradients)
    assert found["apart"][0] == 0 and max(found["apart"]) < 1e-3
    if cache > 2**30:
        assert found["peak"] == pytest.approx(found["planned"], rel=0.02)
