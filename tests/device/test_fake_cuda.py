"""The fake GPU itself: which operations it refuses, and which it counts as a wait."""

from __future__ import annotations

import pytest

from .conftest import report

pytestmark = pytest.mark.device
REFUSED = {
    "mixed": "RuntimeError",
    "fused": "RuntimeError",
    "of the other": "RuntimeError",
    "numpy": "TypeError",
    "captured item": "RuntimeError",
    "pinned cumsum": "RuntimeError",
    "captured up": "RuntimeError",
}
WAITS = {
    "a number": "",
    "index here": "index on the CPU",
    "index there": "",
    "item": "item",
    "if": "item",
    "tolist": "tolist",
    "mask": "boolean index",
    "nonzero": "nonzero",
    "down": "copy to the CPU",
    "up": "copy to the GPU",
    "upload": "",
    "event": "last event",
    "captured": "",
}


def test_the_rules_of_a_gpu() -> None:
    """Replay reads and writes recorded memory: new values in a tensor count, a new tensor does not."""
    found = report("rules.py")
    assert found.pop("gradient") == [0.0, 1.0]
    assert found.pop("replayed") == [0.0, 2.0, 10.0, 11.0, 11.0]
    assert found.pop("copied") == [-7.0, -7.0, 3.0]
    assert found.pop("draws") == [0, 0, 0]
    assert found.pop("sorts") == [[0, 0], [0, 1], [1, 0], [0, 1]]
    assert max(found.pop("attention")) < 0.02, "bf16 keeps 8 bits"
    assert found == {**REFUSED, **WAITS}
