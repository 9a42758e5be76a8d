"""The optimiser on a GPU: its state resumes to the bit, and lies where the config says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    paths = [FOLDER, FOLDER.parents[1] / "src", FOLDER.parent / "trainer", os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "optim_on_gpu.py")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
@pytest.mark.parametrize("form", ["", "offload", "state"])
def test_a_resume_goes_on_to_the_bit(found: dict[str, Any], precision: str, form: str) -> None:
    if form not in found[precision]:
        pytest.skip("torchao is not installed")
    assert found[precision][form]["straight"] == found[precision][form]["resumed"]


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_offloading_moves_the_state_to_the_host_and_changes_no_bit(found: dict[str, Any], precision: str) -> None:
    plain, offloaded = found[precision][""], found[precision]["offload"]
    assert (plain.pop("devices"), offloaded.pop("devices")) == (["gpu"], ["host"])
    assert plain == offloaded
