"""Runs one command and sees to it that nothing of it outlives the process that wanted it.

    python supervisor.py PARENT_PID GRACE_SECONDS COMMAND ...

Ends the command and all that it started when told to (SIGTERM, SIGINT), when the process PARENT_PID is gone, however
that ended, and when the command itself ends; its exit code is the command's. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL = 0.2
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(parent: int, grace: float, command: list[str]) -> int:
    """Run `command` in a process group of its own, with temporary files of its own, which go with it.

    Returns its exit code; 128 + N for one that signal N ended.
    """
    _control(PR_SET_CHILD_SUBREAPER, 1)  # processes whose parent has died come to this one, which can wait for them
    signals: list[int] = []
    for number in ENDING:
        signal.signal(number, lambda number, _: signals.append(number))
    with tempfile.TemporaryDirectory(prefix="hone-vllm-", ignore_cleanup_errors=True) as scratch:
        child = subprocess.Popen(
            command,
            process_group=0,
            env={**os.environ, "TMPDIR": scratch},  # vLLM leaves its rendezvous files
            preexec_fn=lambda: _control(PR_SET_PDEATHSIG, signal.SIGTERM),  # in case this process is killed itself
        )
        while child.poll() is None and not signals and os.getppid() == parent:
            time.sleep(POLL)
        if child.poll() is None:
            child.terminate()  # the first process of vLLM's ends the others in order
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(grace)
        end_group(child.pid)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def end_group(group: int) -> None:
    """Send SIGKILL to what is left of a process group, until nothing is."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(group, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-group, os.WNOHANG) != (0, 0):
                    pass
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
