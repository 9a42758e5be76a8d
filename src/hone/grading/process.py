"""A process of its own for what may hang, crash or die: one JSON question at a time, under a limit of processor time.

The kernel ends the process when a question takes more processor time than it may (not time of the clock: a busy machine
changes no verdict), and the next question starts another. What runs there is `process_main.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hone.grading.inline import GraderFailure
from hone.types import Outcome

_MAIN = str(Path(__file__).with_name("process_main.py"))
_EXIT_SECONDS = 5.0
"""How long a process that has closed its output is given to end by itself, so that its exit code says why."""


class NoVerdict(Exception):
    """There is no answer to a question; `failure` says why."""

    def __init__(self, failure: GraderFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class Worker:
    """Answers questions with the function that `start(*arguments)` of the Python file `script` returns.

    The process is started with the first question, with the interpreter `python` (which needs nothing of hone). It ends
    with this one, or when nobody has the worker any more, and what it started ends with it. Questions, answers and
    `arguments` are JSON. `doing` says in a failure what took too long: "comparing the answer". Questions come one at a
    time, also from several threads.
    """

    def __init__(self, script: Path, arguments: Sequence[Any], doing: str, python: str = sys.executable) -> None:
        # -P: the folder of `process_main.py`, with its `math.py`, stays off the path.
        self._command = [python, "-P", _MAIN, str(script), json.dumps(list(arguments))]
        self._doing = doing
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], bytes | None] = lambda: None

    def ask(self, question: Any, cpu_seconds: int, clock_seconds: float) -> Any:
        """The answer. Raises NoVerdict if the function raised, or took more than these seconds.

        `clock_seconds` is the backstop for a process that waits instead of working.
        """
        with self._lock:
            process = self._process = self._process or self._start()
            try:
                line = _exchange(process, json.dumps([cpu_seconds, question]).encode() + b"\n", clock_seconds)
            except BaseException:  # Ctrl-C: the answer that is still to come must not be taken for that of the next
                self.close()
                raise
            if line is None:
                self.close()
                detail = f"{self._doing} took {clock_seconds:.0f} seconds"
                raise NoVerdict(GraderFailure(Outcome.GRADER_TIMEOUT, detail))
            if not line.endswith(b"\n"):  # it ended, maybe within its answer
                raise NoVerdict(self._why(process, cpu_seconds))
            answer, error = json.loads(line)
            if error is not None:
                raise NoVerdict(GraderFailure(Outcome.GRADER_ERROR, error))
            return answer

    @property
    def running(self) -> bool:
        """Whether there is a process, which remembers what it was asked."""
        return self._process is not None

    def close(self) -> None:
        """Ends the process, if there is one."""
        self._end()
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is not for it, and what it starts is of its group
            env=os.environ | {"PYTHONHASHSEED": "0"},
        )
        self._end = weakref.finalize(self, _end, process)
        return process

    def _why(self, process: subprocess.Popen[bytes], cpu_seconds: int) -> GraderFailure:
        """What a process died of."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_EXIT_SECONDS)
        errors = self._end() or b""
        self._process = None
        if process.returncode == -signal.SIGXCPU:
            detail = f"{self._doing} took {cpu_seconds} seconds of processor time"
            return GraderFailure(Outcome.GRADER_TIMEOUT, detail)
        said = errors.decode("utf-8", "replace").strip()[-2000:]
        return GraderFailure(
            Outcome.GRADER_ERROR, f"the process that was {self._doing} ended with {process.returncode}: {said}"
        )


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """Kills the process and what it started; returns what it wrote about its errors.

    Waits for the process alone: what it started may have left its group, live on and hold its pipes open.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    errors = process.stderr.read() or b""
    for pipe in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(BrokenPipeError):  # a question that it did not read
            pipe.close()
    return errors


def _exchange(process: subprocess.Popen[bytes], question: bytes, seconds: float) -> bytes | None:
    """The line that answers `question`; nothing if the process ended, None if it did not answer in time."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(question)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else None
