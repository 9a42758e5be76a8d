"""Whether a process is still there."""

from __future__ import annotations

import time
from pathlib import Path


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
