"""Starts processes, and ends them together with all their descendants.

    process = Process([sys.executable, "-m", "hone.cli", "rl"], env=env, dies_with_parent=signal.SIGKILL)
    process.poll()       # its exit code once it has ended
    process.end(10.0)    # SIGTERM, and after 10 s SIGKILL

As a script, this file runs a command until its parent ends (see `supervised`). Standard library only.

    python -I processes.py PARENT_PID GRACE_SECONDS COMMAND ...
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICK = 0.05
"""Longest time in seconds between checks of a process."""
_WATCH = 0.2
"""Seconds between checks of a parent."""
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # loaded here: not between fork and exec
_numbers = itertools.count()


class Process:
    """A command in a separate session: Ctrl-C does not reach it, and its process group can be ended as a whole.

    On Linux the process gets the signal `dies_with_parent` when the thread that started it ends. With `adopts_orphans`,
    descendants that lose their parent become children of the process. `kill_marked` finds descendants that have left
    the group by the environment variable `mark`. `options` go to `subprocess.Popen`. `code` is the exit code, -N if
    signal N ended the process, or None while it runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        dies_with_parent: int = 0,
        adopts_orphans: bool = False,
        mark: str = "",
        **options: Any,
    ) -> None:
        self.code: int | None = None
        self._polling = threading.RLock()  # the collection of garbage may poll within a poll
        self._mark = f"{mark}={os.getpid()}-{next(_numbers)}"
        if mark:
            env = {**(os.environ if env is None else env), mark: self._mark.partition("=")[2]}
        asks = _asks_kernel(dies_with_parent, adopts_orphans) if dies_with_parent or adopts_orphans else None
        self._popen = popen = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=asks, **options)
        self.pid = popen.pid
        self.stdin: Any = popen.stdin
        self.stdout: Any = popen.stdout
        self.stderr: Any = popen.stderr

    def poll(self) -> int | None:
        """Return `code`; if the process has ended, kill the rest of its group."""
        with self._polling:
            if self.code is None and hasattr(os, "waitid"):  # macOS has none before Python 3.13
                # Until it is waited for, no other process or group can get its number.
                with contextlib.suppress(ChildProcessError):
                    if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                        return None
                    self.kill()
            self.code = self._popen.poll()
        return self.code

    def wait(self, seconds: float = math.inf) -> int | None:
        wait_all([self], seconds)
        return self.code

    def send(self, signum: int) -> None:
        if self.code is None:
            os.kill(self.pid, signum)  # not Popen's, which would wait for it

    def kill(self) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS, if only the dead process is in it
                os.killpg(self.pid, signal.SIGKILL)

    def kill_marked(self) -> None:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self._mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)

    def end(self, seconds: float) -> None:
        end_all([self], seconds)


def wait_all(
    processes: Sequence[Process], seconds: float = math.inf, hurry: Callable[[], bool] = lambda: False
) -> None:
    """Wait until all processes have ended, at most `seconds`, or until `hurry()` is true."""
    until, pause = time.monotonic() + seconds, 0.001
    while not all([process.poll() is not None for process in processes]) and time.monotonic() < until and not hurry():
        time.sleep(pause)
        pause = min(2 * pause, TICK)


def end_all(processes: Sequence[Process], seconds: float = math.inf, hurry: Callable[[], bool] = lambda: False) -> None:
    """Send SIGTERM to all processes, wait as `wait_all` does, then kill the groups of processes that still run."""
    for process in processes:
        process.send(signal.SIGTERM)
    wait_all(processes, seconds, hurry)
    for process in processes:
        process.kill()
    wait_all(processes)


def signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def _asks_kernel(death_signal: int, adopts_orphans: bool) -> Callable[[], None]:
    parent = os.getpid()

    def ask() -> None:
        if adopts_orphans:
            _prctl(PR_SET_CHILD_SUBREAPER, 1)
        if death_signal:
            _prctl(PR_SET_PDEATHSIG, death_signal)
            if os.getppid() != parent:  # it is gone already
                os._exit(1)

    return ask


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, value, 0, 0, 0)


def end_with(parent: int) -> None:
    """Wait until `parent` has ended, then kill this process's group. For systems other than Linux."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def supervised(command: Sequence[str], grace: float) -> list[str]:
    """Return a command line that runs `command`, and kills the command's group when this process ends, even by SIGKILL.

    The group also ends after SIGTERM, SIGINT or SIGHUP, and when `command` itself ends. The group gets `grace` seconds
    to end, and its temporary files are deleted.
    """
    return [sys.executable, "-I", __file__, str(os.getpid()), str(grace), *command]


def _supervise(parent: int, grace: float, command: list[str]) -> int:
    _prctl(PR_SET_CHILD_SUBREAPER, 1)  # descendants that lose their parent come here, to be waited for
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: signals.append(number))
    with tempfile.TemporaryDirectory(prefix="hone-", ignore_cleanup_errors=True) as scratch:
        env = {**os.environ, "TMPDIR": scratch}  # some leave files in it
        child = Process(command, env=env, dies_with_parent=signal.SIGTERM)  # in case this process is killed itself
        while child.poll() is None and not signals and os.getppid() == parent:
            time.sleep(_WATCH)
        child.end(grace)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-child.pid, 0)  # the killed processes of its group
    assert child.code is not None
    return child.code if child.code >= 0 else 128 - child.code


if __name__ == "__main__":
    sys.exit(_supervise(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on now; another process may take it later."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
