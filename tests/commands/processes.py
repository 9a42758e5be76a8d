"""What a process has started, and whether it has ended (from Linux's /proc)."""

from __future__ import annotations

import time
from pathlib import Path


def descendants(pid: int) -> set[int]:
    """The processes that `pid` has started, and those that they have."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def alive(pids: set[int]) -> set[int]:
    """Those that have not ended (a zombie has)."""
    running = {int(stat.parent.name): stat for stat in Path("/proc").glob("[0-9]*/stat")}
    return {pid for pid in pids if pid in running and ") Z " not in running[pid].read_text()}


def wait_until_gone(pids: set[int], seconds: float = 60.0) -> None:
    """Fails if one of the processes still runs after that time, which is far longer than they need."""
    deadline = time.monotonic() + seconds
    while left := alive(pids):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
