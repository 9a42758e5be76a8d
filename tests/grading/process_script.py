"""What a process of `hone.grading.process` may be asked to do in its tests: each question is one way to go wrong."""

from __future__ import annotations

import gc
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


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
            (pipe,) = (
                f for f in gc.get_objects() if isinstance(f, io.TextIOWrapper) and f.writable() and f.fileno() > 2
            )
            os.write(pipe.fileno(), b'["ha')
            os._exit(4)
        return question

    return answer
