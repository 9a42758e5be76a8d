"""What tests of processes share: whether one is still there, and what it has started."""

from __future__ import annotations

import time
from pathlib import Path


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def gone(pid: int) -> bool:
    """Whether this process ends, or waits as a zombie for its parent, within two minutes."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def left() -> list[int]:
    """Processes that were started to grade, by this process or one below it, and have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if b"\0HONE_GRADER=" in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if not gone(pid)]
