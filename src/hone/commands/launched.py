"""What a role learns from the launcher that has started it: the command that was typed, and whom to end with."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

COMMAND, LAUNCHER = "HONE_LAUNCHED", "HONE_LAUNCHER"
"""Variables that hand a role the command that was typed, as JSON, and the launcher's process id."""
_POLL = 1.0


def variables(command: Sequence[str]) -> dict[str, str]:
    """What the environment of a role tells it: whose it is, and which command was typed."""
    return {COMMAND: json.dumps(list(command)), LAUNCHER: str(os.getpid())}


def enter() -> None:
    """To be called first by every command; does nothing in a process that no launcher has started."""
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None and sys.platform != "linux":  # where the kernel kills it
        threading.Thread(target=end_with, args=(int(launcher),), daemon=True).start()


def end_with(launcher: int) -> None:
    """Waits until this process has another parent than `launcher`, and kills its group then."""
    while os.getppid() == launcher:
        time.sleep(_POLL)
    os.killpg(0, signal.SIGKILL)
