"""Freed memory goes back to the system when much of it has gathered, and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import torch
from hone.hardware import resident_bytes
from hone.trainer.heap import GROWTH, Heap, tune

def used(mib):
    return [torch.ones(2**18) for _ in range(mib)]  # 1 MiB each

tune(alone=True)
heap = Heap()
torch.ones(1)
heap.trim()
before = resident_bytes()
blocks = used(200)
kept = torch.ones(2**10)  # behind them on the heap
del blocks
heap.trim()
assert resident_bytes() > before + 150 * 2**20, "little gathered: it is kept for what comes next"
blocks = used(600)
last = torch.ones(2**10)
del blocks
assert resident_bytes() > before + 500 * 2**20
heap.trim()
assert resident_bytes() < before + 100 * 2**20
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's")
def test_freed_memory_is_given_back_when_much_has_gathered() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
