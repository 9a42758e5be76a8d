"""Models that transformers computes, on the fake GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import report

pytestmark = pytest.mark.device


def test_cublas_is_told_of_deterministic_kernels_before_its_first_product(tmp_path: Path) -> None:
    """It reads its variable once, at the comparison of logits when the model is loaded."""
    found = report("foreign_on_gpu.py", str(tmp_path), "16", "fp32", CUBLAS_WORKSPACE_CONFIG=None)
    assert (found["code"], found["first"]) == (0, ":4096:8"), found["error"]


@pytest.mark.parametrize(("width", "precision", "code"), [(264, "bf16", 2), (264, "fp32", 0), (256, "bf16_linear", 0)])
def test_a_head_wider_than_the_kernel_takes_is_refused_before_step_0(
    width: int, precision: str, code: int, tmp_path: Path
) -> None:
    found = report("foreign_on_gpu.py", str(tmp_path), str(width), precision)
    assert found["code"] == code, found["error"]
    assert code == 0 or ("264" in found["error"] and "precision = fp32" in found["error"])
    assert (tmp_path / "run").exists() is (code == 0)
