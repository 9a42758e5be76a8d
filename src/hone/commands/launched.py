"""What a role does that the launcher has started: it bears the command that was typed, and ends with the launcher."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

VARIABLE = "HONE_LAUNCHED"
"""Marks a process that the launcher has started, and hands it the launcher's id and command."""
_POLL = 1.0


def variables(command: Sequence[str]) -> dict[str, str]:
    """The environment of a role: whose it is, and which command was typed."""
    return {VARIABLE: json.dumps({"launcher": os.getpid(), "command": list(command)})}


def enter() -> None:
    """To be called first by every command; does nothing in a process that no launcher has started."""
    if VARIABLE not in os.environ:
        return
    told = json.loads(os.environ.pop(VARIABLE))
    sys.argv = told["command"]
    if sys.platform != "linux":  # where the kernel kills it
        threading.Thread(target=end_with, args=(told["launcher"],), daemon=True).start()


def end_with(launcher: int) -> None:
    """Waits until this process has another parent than `launcher`, and kills its group then."""
    while os.getppid() == launcher:
        time.sleep(_POLL)
    os.killpg(0, signal.SIGKILL)
