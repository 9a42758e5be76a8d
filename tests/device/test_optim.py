"""The optimiser on a GPU: its state resumes to the bit, and lies where the config says."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import report

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return report("optim_on_gpu.py")


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
@pytest.mark.parametrize("form", ["", "offload"])
def test_a_resume_goes_on_to_the_bit(found: dict[str, Any], precision: str, form: str) -> None:
    assert found[precision][form]["straight"] == found[precision][form]["resumed"]


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_offloading_moves_the_state_to_the_host_and_changes_no_bit(found: dict[str, Any], precision: str) -> None:
    plain, offloaded = found[precision][""], found[precision]["offload"]
    assert (plain.pop("devices"), offloaded.pop("devices")) == (["gpu"], ["host"])
    assert (plain.pop("blocks"), offloaded.pop("blocks")) == (0, 1), "all masters are in one"
    assert plain == offloaded
