"""What a process of `hone.grading.process` may be asked to do in its tests: each question is one way to go wrong."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def answers_pipe() -> int:
    """The pipe that answers go through: the only one that is no standard stream and can be written to."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if fd > 2 and stat.S_ISFIFO(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_WRONLY:
                return fd
    raise LookupError


def start(pids: str) -> Callable[[str], Any]:
    """Answers with the question itself, but for those below; the file `pids` gets the id of a forked process."""

    def fork() -> bool:
        if pid := os.fork():
            Path(pids).write_text(str(pid))
        return pid == 0

    def answer(question: str) -> Any:
        if question == "fork and spin":
            if fork():
                time.sleep(600)
            while True:
                pass
        if question == "fork and die":
            if fork():
                time.sleep(600)
            os._exit(3)
        if question == "fork and raise" and fork():
            raise RuntimeError("in the process that was forked")
        if question == "read":
            return sys.stdin.read() + subprocess.run(["cat"], capture_output=True, text=True, check=True).stdout
        if question == "half an answer":
            os.write(answers_pipe(), b"[1, fal")
            os._exit(4)
        if question == "a wrong answer":
            os.write(answers_pipe(), b'[7, false, "lie", null]\n')
        return question

    return answer
