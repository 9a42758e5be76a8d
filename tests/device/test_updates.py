"""A weight update of hone's server on the fake GPU: no second model there, and nothing of bad weights is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import report

pytestmark = pytest.mark.device


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_an_update_takes_no_second_model(precision: str, tmp_path: Path) -> None:
    found = report("updates.py", str(tmp_path), precision)
    for name in ("disk", "memory"):
        assert found[f"{name}: on the host"]
        assert found[f"{name}: peak above resident"] <= found["largest"], found
    assert found["in place"] and found["equal"], "recorded graphs know the addresses"
    assert len(found["casts"]) == (8 if precision == "bf16_linear" else 0) and all(found["casts"])
    assert found["samples"] == found["expected"]
    assert "are not finite" in found["refused"] and found["after bad"], "the old weights are whole"
