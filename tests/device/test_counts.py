"""What a step launches, moves and holds on a GPU, counted under its label.

| a layer, in                 | kernels, at first | now | MB read and written, at first | now |
|-----------------------------|-----|-----|-----|-----|
| a decode step, bf16_linear  | 58  | 43  | 2.6 | 2.5 |
| a decode step, bf16         | 56  | 38  | 2.5 | 2.4 |
| with an adapter             | 65  | 50  | 3.3 | 2.8 |
| on a base in 4 bits         | 77  | 62  | 10  | 9.6 |
| a train step, bf16_linear   | 268 | 184 | 421 | 326 |
| a train step, bf16          | 266 | 168 | 383 | 263 |

A train step is of two micro-batches, with the optimiser. Liger's kernels come off that: test_kernels.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import report

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return report("counts.py")


@pytest.mark.parametrize(
    ("case", "kernels", "megabytes"),
    [
        ("decode bf16_linear", 43, 2.5),
        ("decode bf16", 38, 2.4),
        ("decode bf16, lora", 50, 2.8),
        ("decode bf16, lora on 4 bits", 62, 9.6),
        ("train bf16_linear", 184, 326),
        ("train bf16", 168, 263),
    ],
)
def test_a_layer_launches_and_moves_no_more(found: dict, case: str, kernels: int, megabytes: float) -> None:
    layer = found[case]["layer"]
    assert layer["kernels"] <= kernels and layer["bytes"] <= 1e6 * megabytes
    assert layer["left"] == 0


def test_a_train_step_takes_the_memory_that_is_planned(found: dict) -> None:
    """By its live bytes at the peak, beside weights and optimiser; with every kind of checkpointing."""
    steps = {case: counts["whole"] for case, counts in found.items() if case.startswith("train")}
    assert len(steps) == 6
    for case, counts in steps.items():
        assert counts["planned"] == pytest.approx(counts["peak"], rel=0.05), case
