"""How many element-wise kernels a layer takes on a GPU: each reads and writes all its tokens."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import report

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return report("kernels.py")


@pytest.mark.parametrize(
    ("case", "forward", "backward"),
    [
        ("torch bf16 True", 15, 24),
        ("torch bf16 False", 12, 15),
        ("torch bf16_linear True", 19, 34),
        ("torch bf16_linear False", 17, 26),
        ("liger bf16 True", 12, 19),
        ("liger bf16 False", 9, 10),
        ("liger bf16_linear True", 16, 29),
        ("liger bf16_linear False", 14, 21),
    ],
)
def test_a_layer_takes_few_kernels_forward_and_backward(found, case: str, forward: int, backward: int) -> None:
    """The third word: with a norm of each head. Values and gradients are the CPU's up to rounding."""
    assert found[case]["kernels"] == [forward, backward]
    values, gradients = found[case]["apart"]
    assert values < 0.06 and gradients < 0.05
