"""What runs in the processes of Pebble for `grading.py`, and in those of hone's pool beside it."""

from __future__ import annotations

import functools
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CODE_THAT_HEARS_NOTHING = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32)); time.sleep(600)"


@functools.cache
def _compare() -> Callable[[list[str]], bool | None]:
    from hone.grading.math_worker import start

    logging.disable(logging.CRITICAL)  # its warnings that it has no time limit
    return start()


def equal(pair: list[str]) -> float:
    """Whether two pieces of mathematics are equal, as math-problems finds out."""
    return float(bool(_compare()(pair)))


def itself(value: Any) -> Any:
    """The round trip of nothing."""
    return value


def leave_grandchildren(file: str) -> None:
    """Starts a process of its own session, writes its id into a file, and hangs."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(file).write_text(str(child.pid))
    time.sleep(600)


def hear_nothing() -> None:
    """Hangs with all signals blocked, as C code in a long loop does."""
    os.execv(sys.executable, [sys.executable, "-c", CODE_THAT_HEARS_NOTHING])


def memory_limit() -> float | None:
    """GiB of address space; None if there is no limit."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit / 2**30


def start() -> Callable[[list[Any]], Any]:
    """For hone's pool: the function of `[name, argument, …]`."""
    return lambda question: globals()[question[0]](*question[1:])
