"""What a process has started, whether it has ended (from Linux's /proc), and waiting for what another one does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(condition: Callable[[], Any], what: str = "it is so") -> Any:
    """What the condition says once that is true; a test that waits 15 minutes fails."""
    deadline = time.monotonic() + 900
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.01)
    return value


def parents() -> dict[int, int]:
    """Each process that runs here (a zombie doesn't), and its parent."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended meanwhile
            continue
        if state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


def children(pid: int) -> set[int]:
    return {child for child, parent in parents().items() if parent == pid}


def descendants(pid: int) -> set[int]:
    """The processes that `pid` has started, and those that they have."""
    below = children(pid)
    return below.union(*map(descendants, below))


def alive(pids: set[int]) -> set[int]:
    return pids & parents().keys()


def wait_until_gone(pids: set[int], seconds: float = 300.0) -> None:
    """Fails if one of the processes still runs after that time, which is far longer than they need."""
    deadline = time.monotonic() + seconds
    while left := alive(pids):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
