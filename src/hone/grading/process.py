"""A process of its own for what may hang, crash or die: JSON questions in, JSON answers out, under limits.

The kernel ends the process when a question takes more processor time than it may (not time of the clock: a busy machine
changes no verdict). With it ends whatever was started there, also in a session of its own, also when hone is killed.
What runs there is `process_main.py`; who asks is `hone.grading.pool`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hone.grading.inline import GraderFailure, cut
from hone.types import Outcome

_MAIN = str(Path(__file__).with_name("process_main.py"))
_LONGEST = 17 * 2**20
"""Bytes of an answer's line, which `process_main` keeps shorter."""
_WORDS = 2**16
"""Bytes of what a process wrote on stderr that are looked at."""
_END_SECONDS = 10.0
"""How long the keeper is given to end what it keeps, before it is ended itself."""
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2"}
_ENVIRONMENT |= {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
"""One thread each, for there is a process per core, and threads take address space that is limited."""
_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""Signals that a user or the system (short of memory) ends a process by; others come of what it does itself."""
_numbers = itertools.count()


def inside() -> bool:
    """Return True if this code runs in such a process already, so that it need not be protected once more."""
    return getattr(sys.modules.get("__main__"), "IS_HONE_WORKER", False)


class Garbled(Exception):
    """What came is no answer: other code wrote to the pipe."""


class Closed(Exception):
    """No more answers come: the process ends, or other code closed the pipe."""


@dataclass(frozen=True)
class Reply:
    """The answer to question `number` (that of `Process.first`: it is ready). After the `last` one the process ends."""

    number: int
    last: bool
    answer: Any
    error: str | None


@dataclass(frozen=True)
class Ended:
    """What a process ended of: its exit code, or minus the signal; None if its keeper was killed."""

    code: int | None
    words: str

    @property
    def killed(self) -> bool:
        """True for a signal from outside, which says nothing of the question that the process was at."""
        return self.code is None or -self.code in _OUTSIDE

    def failure(self, doing: str, seconds: float | None) -> GraderFailure:
        """In words; `doing` is what it was at, with a limit of `seconds` of processor time."""
        if self.code in (-signal.SIGPROF, -signal.SIGXCPU):
            detail = f"{doing} took {seconds:g} seconds of processor time" if seconds else f"{doing} took too long"
            return GraderFailure(Outcome.GRADER_TIMEOUT, detail)
        how = "was killed" if self.code is None else f"ended with {self.code}"
        if self.code is not None and self.code < 0:
            how = f"was ended by {_signal_name(-self.code)}"
        detail = f"the process that was {doing} {how}: {self.words}".rstrip(": ")
        return GraderFailure(Outcome.GRADER_ERROR, detail, killed=self.killed)


class Process:
    """One process, started at once. It ends with this object, and takes what it started along.

    Nothing here waits, but for `finish`. `answers` and `status` are file descriptors to be watched for reading, and
    `questions` for writing as long as `unsent`.
    """

    def __init__(
        self,
        python: str,
        script: Path,
        arguments: Sequence[Any],
        memory_bytes: int,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.status, status = os.pipe()
        marker = f"HONE_GRADER={os.getpid()}-{next(_numbers)}"
        name, _, value = marker.partition("=")
        with tempfile.TemporaryFile() as words:
            self._words = os.dup(words.fileno())
            try:
                self._popen = subprocess.Popen(
                    # -P: the folder of `process_main.py`, with its `math.py`, stays off the path.
                    [python, "-P", _MAIN, str(status)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=words,
                    bufsize=0,
                    pass_fds=[status],
                    start_new_session=True,  # Ctrl-C is not for it
                    env={**os.environ, **_ENVIRONMENT, **environment, name: value},
                )
            finally:
                os.close(status)
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self.questions, self.answers = self._popen.stdin.fileno(), self._popen.stdout.fileno()
        for fd in (self.questions, self.answers):
            os.set_blocking(fd, False)
        self.pid = self._popen.pid
        self._end = weakref.finalize(self, _end, os.getpid(), self._popen, self.status, self._words, marker)
        # Numbers that no other code guesses, so that what it writes to the pipe is not taken for an answer.
        self.first = self._asked = int.from_bytes(os.urandom(6), "big")
        self._out, self._in = bytearray(), bytearray()
        setting = {"script": str(script), "arguments": list(arguments), "memory": memory_bytes, "number": self.first}
        self._write(setting)

    @property
    def unsent(self) -> bool:
        """True if there is something that the process has not taken yet."""
        return bool(self._out)

    def ask(self, question: Any, seconds: float | None) -> int:
        """Send a question that may take so much processor time (None: any); returns its number."""
        self._asked += 1
        self._write([self._asked, seconds, question])
        return self._asked

    def send(self) -> None:
        """Send what the process takes of what is unsent."""
        try:
            while self._out:
                del self._out[: os.write(self.questions, self._out)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._out.clear()  # it has ended, as `status` will tell

    def replies(self) -> list[Reply]:
        """Return the answers that have come. Garbled for what is none, Closed if there are none and never will be."""
        fresh, closed = 0, False
        with contextlib.suppress(BlockingIOError):
            while len(self._in) <= _LONGEST and not closed:
                read = os.read(self.answers, 2**18)
                fresh, closed = fresh + len(read), not read
                self._in += read
        if self._in.find(b"\n", len(self._in) - fresh) >= 0:
            *lines, self._in = self._in.split(b"\n")
            return [_reply(bytes(line)) for line in lines]
        if closed:
            raise Closed
        if len(self._in) > _LONGEST:
            raise Garbled
        return []

    def let_go(self) -> None:
        """Make it end, without waiting for that: `status` can be read to its end then."""
        with contextlib.suppress(OSError):
            self._popen.stdin.close()  # type: ignore[union-attr]

    def finish(self) -> Ended:
        """End it, and wait until nothing of it is left."""
        return self._end() or Ended(None, "")

    def _write(self, value: Any) -> None:
        self._out += json.dumps(value).encode() + b"\n"
        self.send()


def readable(fd: int, seconds: float) -> bool:
    """Return True if something can be read within this time, be it the end."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(1000 * seconds))


def _reply(line: bytes) -> Reply:
    try:
        number, last, answer, error = json.loads(line)
        assert isinstance(number, int) and isinstance(last, bool) and isinstance(error, str | None)
    except (ValueError, TypeError, AssertionError, RecursionError):
        raise Garbled from None
    return Reply(number, last, answer, error)


def _end(owner: int, popen: subprocess.Popen[bytes], status: int, words: int, marker: str) -> Ended | None:
    """Make the keeper end everything, and itself; kill what it cannot. Do nothing in a forked process."""
    if os.getpid() != owner:
        os.close(status)
        os.close(words)
        return None
    assert popen.stdin is not None and popen.stdout is not None
    with contextlib.suppress(OSError):
        popen.stdin.close()
    code = os.read(status, 100) if readable(status, _END_SECONDS) else b""
    if not code:  # the keeper was killed, or stopped
        popen.kill()
        _kill_marked(marker.encode())
    popen.wait()
    text = os.pread(words, _WORDS, max(0, os.fstat(words).st_size - _WORDS)).decode("utf-8", "replace")
    text = text.partition("\n\nExtension modules: ")[0]  # a list of faulthandler's, which depends on what ran before
    popen.stdout.close()
    os.close(status)
    os.close(words)
    return Ended(json.loads(code or b"null"), cut(text.strip(), 2000))


def _kill_marked(marker: bytes) -> None:
    """Kill the processes that have this environment variable, where the system tells: what a keeper has not kept."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
