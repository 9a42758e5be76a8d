"""Processes that answer questions in parallel, isolated from each other, under limits. The messages are JSON.

    with Pool(script, arguments, "grading", workers=4) as pool:
        answers = pool.ask_all(questions, cpu_seconds=10, clock_seconds=60)

A question that hangs, crashes or exceeds a limit fails alone, and its process is replaced. If the process was killed
from outside, the question is asked again. The kernel enforces the limit of processor time. The limit of wall time
excludes waits for a core, up to ten times the limit, so that load changes no verdict. When a process
(`process_main.py`) or hone ends, everything that the process started ends with it, also in another session.

Pebble (5.2, measured by `benchmarks/grading.py`) leaves processes of a task alive, takes 4 seconds more for code that
ignores signals, limits neither memory nor processor time, and is no faster.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hone import processes
from hone.errors import Halt, UserError
from hone.grading.inline import GraderFailure, cut
from hone.types import Outcome

MEMORY_BYTES = 4 * 2**30
START_SECONDS = 600.0
"""Maximum seconds until a process is ready. It may have to download files."""
OnAnswer = Callable[[int, Any], None]
"""Called with the number of answers so far, and the latest answer."""
_MAIN = str(Path(__file__).with_name("process_main.py"))
_LONGEST = 17 * 2**20
"""Maximum bytes of a line. `process_main` writes shorter lines."""
_WORDS = 2**16
"""Bytes to read from the end of a process's stderr."""
_CLOSING_SECONDS = 10.0
"""Seconds for a process to end after it has closed its output."""
_END_SECONDS = 10.0
"""Seconds for the keeper to end its processes, before it is killed."""
_MOST_STARVED = 10
"""Maximum extra wall time for waits for a core, in multiples of a question's limit. It is large, because one process
of many may wait nearly all the time."""
_AGAIN, _AGAIN_KEEPER = 1, 3
"""Retries of a question after its process was killed from outside, and after the keeper was killed (perhaps by the
code of an earlier question)."""
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2"}
_ENVIRONMENT |= {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")}
"""One thread each: there is a process per core, and threads take limited address space."""
_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
"""Signals that a user sends, or the system when memory is short. Other signals come from the task's code."""


class StartFailure(Halt):
    """A process could not start; the message's last line says why. A run in progress saves its state."""


class NoVerdict(Exception):
    """There is no answer to a question; `failure` says why."""

    def __init__(self, failure: GraderFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class InvalidAnswer(Exception):
    """The answer is malformed, because the task's code wrote to the pipe."""


class Closed(Exception):
    """No more answers will come: the process is ending, or the task's code closed the pipe."""


class Stopped(Exception):
    """The answer is not needed any more."""


@dataclass(frozen=True)
class ExitStatus:
    """A process's exit code (-N for signal N; None if its keeper was killed) and the end of its stderr."""

    code: int | None
    words: str

    @property
    def killed(self) -> bool:
        """True if a signal from outside ended the process, so that the question is not at fault."""
        return self.code is None or -self.code in _OUTSIDE

    def failure(self, doing: str, seconds: float | None) -> GraderFailure:
        """Return the failure of a question that ended its process. `seconds`: the limit of processor time."""
        if self.code in (-signal.SIGPROF, -signal.SIGXCPU):
            detail = f"{doing} took {seconds:g} seconds of processor time" if seconds else f"{doing} took too long"
            return GraderFailure(Outcome.GRADER_TIMEOUT, detail)
        how = "was killed" if self.code is None else f"ended with {self.code}"
        if self.code is not None and self.code < 0:
            how = f"was ended by {processes.signal_name(-self.code)}"
        detail = f"the process that was {doing} {how}: {self.words}".rstrip(": ")
        return GraderFailure(Outcome.GRADER_ERROR, detail, killed=self.killed)


class Process:
    """One process, started by the constructor. The process and everything that it started end with this object."""

    ahead: Any = None
    """The next question with its limits. A remote process gets it while it answers the current question."""
    is_far = False
    """True if sending a question may take longer than answering it."""

    def __init__(
        self, python: str, script: Path, arguments: Sequence[Any], memory_bytes: int, environment: Mapping[str, str]
    ) -> None:
        self.ready = False
        self._late = time.monotonic() + START_SECONDS
        self._status, status = os.pipe()
        with tempfile.TemporaryFile() as words:
            output = os.dup(words.fileno())
            try:
                keeper = processes.Process(
                    # -P: the folder of `process_main.py`, with its `math.py`, stays off the path.
                    [python, "-P", _MAIN, str(status)],
                    env={**os.environ, **_ENVIRONMENT, **environment},
                    mark="HONE_GRADER",
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=words,
                    bufsize=0,
                    pass_fds=[status],
                )
            finally:
                os.close(status)
        self._questions, self._answers, self.pid = keeper.stdin.fileno(), keeper.stdout.fileno(), keeper.pid
        for fd in (self._questions, self._answers):
            os.set_blocking(fd, False)
        self.let_go = keeper.stdin.close
        """Makes the process end, without waiting."""
        self._end = weakref.finalize(self, _end, os.getpid(), keeper, self._status, output)
        # No other code guesses these numbers, so its output in the pipe is not taken for an answer.
        self._number = int.from_bytes(os.urandom(6), "big")
        self._out, self._in = bytearray(), bytearray()
        setting = {"script": str(script), "arguments": list(arguments), "memory": memory_bytes, "number": self._number}
        self._send(setting)

    def get_ready(self, stop: int) -> str | None:
        """Wait until the process can answer. Return the error of its start, or None. Raises the errors of `ask`."""
        _, error, last = self._receive(self._late, stop)
        self.ready = not last
        return error

    def ask(self, question: Any, cpu: float | None, clock: float, stop: int) -> tuple[Any, str | None, bool]:
        """Return (answer, traceback or None, True if the process now ends).

        Raises InvalidAnswer or Closed. Raises Stopped once `stop` can be read. Raises TimeoutError after `clock`
        seconds plus the longest wait of a thread of the process for a core (at most `_MOST_STARVED` times `clock`).
        """
        self._number += 1
        self._send([self._number, cpu, question])
        begun, starved = time.monotonic(), 0.0
        with contextlib.suppress(TimeoutError):  # most questions are answered by then
            return self._receive(begun + clock / 10, stop)
        before = _core_waits(self.pid)
        while True:
            try:
                return self._receive(begun + clock + starved, stop)
            except TimeoutError:
                waits = (seconds - before.get(thread, 0.0) for thread, seconds in _core_waits(self.pid).items())
                starved = min(max(starved, *waits, 0.0), _MOST_STARVED * clock)
                if time.monotonic() >= begun + clock + starved:
                    raise

    @property
    def is_idle(self) -> bool:
        """True if the process is alive and has written nothing unexpected."""
        return not self._in and not readable(self._status, 0) and not readable(self._answers, 0)

    def ends(self, seconds: float) -> bool:
        return readable(self._status, seconds)

    def finish(self) -> ExitStatus:
        return self._end() or ExitStatus(None, "")

    def _send(self, value: Any) -> None:
        self._out += json.dumps(value).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        try:
            while self._out:
                del self._out[: os.write(self._questions, self._out)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._out.clear()  # it has ended, as the answers will tell

    def _receive(self, deadline: float, stop: int) -> tuple[Any, str | None, bool]:
        fresh = 0
        while (end := self._in.find(b"\n", len(self._in) - fresh)) < 0:
            poller = select.poll()
            for fd in (self._answers, stop):
                poller.register(fd, select.POLLIN)
            if self._out:
                poller.register(self._questions, select.POLLOUT)
            events = dict(poller.poll(1000 * max(0.0, min(deadline - time.monotonic(), 3600.0))))
            if stop in events:
                raise Stopped
            if not events and time.monotonic() >= deadline:
                raise TimeoutError
            self._write()
            with contextlib.suppress(BlockingIOError):
                part = os.read(self._answers, 2**18)
                if not part:
                    raise Closed
                self._in += part
                fresh = len(part)
            if len(self._in) > _LONGEST:
                raise InvalidAnswer
        line, self._in = bytes(self._in[:end]), self._in[end + 1 :]
        try:
            number, last, answer, error = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            raise InvalidAnswer from None
        if number != self._number or not isinstance(last, bool) or not isinstance(error, str | None):
            raise InvalidAnswer
        return answer, error, last


class Pool:
    """Up to `workers` processes. They start with the first questions and end with the pool.

    Each process answers with the function that `start(*arguments)` of the file `script` returns. Questions, answers and
    `arguments` are JSON. The interpreter `python` needs no hone. A process that is ready may take `memory_bytes` more
    memory. `environment` adds variables. `doing` names the work in a failure: "grading". Several threads may use the
    pool, one at a time. In a forked process the pool starts new processes.
    """

    def __init__(
        self,
        script: Path,
        arguments: Sequence[Any],
        doing: str,
        *,
        workers: int = 1,
        memory_bytes: int = MEMORY_BYTES,
        python: str = sys.executable,
        environment: Mapping[str, str] = MappingProxyType({}),
        process: Callable[..., Process] = Process,
    ) -> None:
        self.doing, self.workers = doing, workers
        self._start = lambda: process(python, script, arguments, memory_bytes, environment)
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        self._lock, self._round_is_open = threading.RLock(), False
        self._processes: list[Process | None] = [None] * self.workers

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process is not None]

    def start(self, count: int) -> None:
        """Start processes until there are `count`, at most `workers`. Don't wait until they are ready."""
        with self._lock:
            for i in range(min(count, self.workers)):
                self._processes[i] = self._processes[i] or self._start()

    def ask_all(
        self,
        questions: Sequence[Any],
        cpu_seconds: float | None,
        clock_seconds: float,
        doing: str | None = None,
        on_answer: OnAnswer = lambda done, answer: None,
        times: Sequence[int] = (),
    ) -> list[Any | GraderFailure]:
        """Return the answers in the order of the questions. Limits are as in `open_round`, `times` as in `put`."""
        with self.open_round(cpu_seconds, clock_seconds, doing) as round:
            self.start(len(questions))
            # A thread would take longer than many a question.
            round.put(*questions, at_once=len(questions) > 1, times=times)
            return round.answers(on_answer)

    @contextlib.contextmanager
    def open_round(
        self, cpu_seconds: float | None, clock_seconds: float, doing: str | None = None
    ) -> Iterator[RequestBatch]:
        """Yield a batch of questions. While the block runs, each question is asked as soon as a process is free.

        The answer to a question that raises or exceeds a limit is a failure. `cpu_seconds` (None: no limit) limits
        processor time and `clock_seconds` wall time. An exception in the block, such as Ctrl-C, ends all processes.
        Other threads wait until the block ends; this thread must not open a second batch in it.
        """
        with self._lock:
            assert not self._round_is_open, "two rounds would take each other's answers"
            self._round_is_open = True
            try:
                with RequestBatch(self, cpu_seconds, clock_seconds, doing or self.doing) as round:
                    yield round
            except BaseException:
                self.close()
                raise
            finally:
                self._round_is_open = False

    def close(self) -> None:
        """End the processes. The next question starts new processes."""
        with self._lock:
            processes = [process for process in self._processes if process is not None]
            self._processes = [None] * self.workers  # first, in case this is interrupted
            for process in processes:
                with contextlib.suppress(OSError):
                    process.let_go()
            for process in processes:
                process.finish()


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    """In a forked process, forget the pools' processes: these answer only the parent process."""
    for pool in list(_pools):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class RequestBatch:
    """Questions and their answers. For each process, one thread asks questions one after another."""

    def __init__(self, pool: Pool, cpu: float | None, clock: float, doing: str) -> None:
        self.pool, self.cpu, self.clock, self.doing = pool, cpu, clock, doing
        self._questions: list[tuple[Any, float | None, float]] = []
        """(Question, limit of processor time, limit of wall time)."""
        self._waiting: deque[int] = deque()
        self._ahead: dict[int, int] = {}
        self._unanswered = 0
        self._changed = threading.Condition()
        self._complete = False
        self._threads: list[threading.Thread] = []
        self._answered: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._again: Counter[int] = Counter()
        self._killed_at_start = 0
        self._stop, self._stopped = os.pipe()

    def put(self, *questions: Any, at_once: bool = True, times: Sequence[int] = ()) -> None:
        """Queue questions for threads, or with `at_once` false for `answers`. `times` multiplies the limits."""
        timed = zip(questions, times or [1] * len(questions), strict=True)
        with self._changed:
            first = len(self._questions)
            # Before a thread can take their indices.
            self._questions += [(one, self.cpu and self.cpu * n, self.clock * n) for one, n in timed]
            self._waiting += range(first, len(self._questions))
            self._unanswered += len(questions)
            self._changed.notify(len(questions))
        while at_once and len(self._threads) < min(len(self._questions), self.pool.workers):
            self._threads.append(threading.Thread(target=self._serve, args=(len(self._threads),), daemon=True))
            self._threads[-1].start()

    def answers(self, on_answer: OnAnswer = lambda done, answer: None) -> list[Any | GraderFailure]:
        """Return all answers in the order of the questions. Raises StartFailure. Don't call `put` afterwards."""
        self._end()
        if not self._threads:
            self._serve(0)
        answers: dict[int, Any] = {}
        while len(answers) < len(self._questions):
            index, answer = self._answered.get()
            if isinstance(answer, BaseException):
                raise answer
            answers[index] = answer
            on_answer(len(answers), answer)
        return [answers[index] for index in range(len(self._questions))]

    def __enter__(self) -> RequestBatch:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        assert error or self._complete, "what is left of a round would be taken for answers to the next"
        os.write(self._stopped, b"x")
        with self._changed:
            self._waiting.clear()
            self._unanswered = 0
        self._end()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for fd in (self._stop, self._stopped):
            os.close(fd)

    def _end(self) -> None:
        with self._changed:
            self._complete = True
            self._changed.notify_all()

    def _serve(self, place: int) -> None:
        try:
            while place in self._ahead or self._one_waits():
                process = self._ready(place)
                with self._changed:
                    if place not in self._ahead and not self._waiting:  # another took the last one meanwhile
                        continue
                    index = self._ahead.pop(place) if place in self._ahead else self._waiting.popleft()
                    # Not the last ones: behind one that hangs they would wait while other processes are free.
                    if process.is_far and len(self._waiting) >= 2 * self.pool.workers:
                        self._ahead[place] = self._waiting.popleft()
                process.ahead = self._questions[self._ahead[place]] if place in self._ahead else None
                self._ask(place, process, index)
        except Stopped:
            pass
        except Exception as error:
            self._answered.put((-1, error))

    def _one_waits(self) -> bool:
        """Wait for a question. Return False once no `put` can follow and all are answered (one may be queued again)."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or (self._complete and self._unanswered <= 0))
            return bool(self._waiting)

    def _enter(self, index: int, answer: Any) -> None:
        self._answered.put((index, answer))
        with self._changed:
            self._unanswered -= 1
            self._changed.notify_all()

    def _wait_again(self, index: int) -> None:
        with self._changed:
            self._waiting.appendleft(index)
            self._changed.notify()

    def _ready(self, place: int) -> Process:
        """Return the process at this place, or a new process, once it is ready. Raises StartFailure."""
        processes = self.pool._processes
        while True:
            process = processes[place] = processes[place] or self.pool._start()
            if process.ready and process.is_idle:
                return process
            try:
                if process.ready:
                    raise Closed
                if (error := process.get_ready(self._stop)) is None:
                    return process
            except InvalidAnswer:
                error = "it wrote to the pipe of the answers while it started"
            except TimeoutError:
                error = f"it was not ready after {START_SECONDS:.0f} seconds"
            except Closed:
                error = None if process.ready or process.ends(_CLOSING_SECONDS) else "it closed its output"
            processes[place] = None
            ended = process.finish()
            if not process.ready and error is None:
                self._killed_at_start += ended.killed
                if not ended.killed or self._killed_at_start > self.pool.workers:
                    error = ended.failure("starting", None).detail
            if error is not None:
                # A UserError's message is enough, without its traceback.
                reason = error.strip().rpartition(f"\n{UserError.__module__}.UserError: ")[2]
                raise StartFailure(f"the process for {self.doing} could not start: {reason}")

    def _ask(self, place: int, process: Process, index: int) -> None:
        """Store the answer to a question; queue the question again if the process was killed from outside."""
        failure, last = None, True
        _, cpu, clock = self._questions[index]
        try:
            answer, error, last = process.ask(*self._questions[index], self._stop)
            self._enter(index, answer if error is None else GraderFailure(Outcome.GRADER_ERROR, error))
        except InvalidAnswer:
            failure = GraderFailure(Outcome.GRADER_ERROR, f"the process that was {self.doing} wrote what is no answer")
        except TimeoutError:
            failure = GraderFailure(Outcome.GRADER_TIMEOUT, f"{self.doing} took {clock:g} seconds")
        except Closed:
            if not process.ends(min(clock, _CLOSING_SECONDS)):
                failure = GraderFailure(Outcome.GRADER_ERROR, f"the process that was {self.doing} closed its output")
            else:
                ended = process.finish()
                self._again[index] += 1
                if ended.killed and self._again[index] <= (_AGAIN_KEEPER if ended.code is None else _AGAIN):
                    self._wait_again(index)
                else:
                    failure = ended.failure(self.doing, cpu)
        if last:
            self.pool._processes[place] = None
            process.finish()
            if place in self._ahead:
                self._wait_again(self._ahead.pop(place))
        if failure is not None:
            self._enter(index, replace(failure, lost=True))


class Worker:
    """A process for a library that may hang or die: a pool of one process, started with the first question."""

    def __init__(self, script: Path, arguments: Sequence[Any], doing: str, python: str = sys.executable) -> None:
        self._pool = Pool(script, arguments, doing, python=python)
        self.close = self._pool.close

    def ask(self, question: Any, cpu_seconds: float, clock_seconds: float) -> Any:
        """Return the answer. Raises NoVerdict if the function raised, took too long, or could not be asked."""
        try:
            [answer] = self._pool.ask_all([question], cpu_seconds, clock_seconds)
        except StartFailure as error:
            answer = GraderFailure(Outcome.GRADER_ERROR, str(error))
        if isinstance(answer, GraderFailure):
            raise NoVerdict(answer)
        return answer


def readable(fd: int, seconds: float) -> bool:
    """Return True if `fd` has data, or is closed, within this time."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(1000 * seconds))


def _core_waits(pid: int) -> dict[str, float]:
    """Return the seconds that each thread of a process and its descendants has waited for a core.

    The source is the second number in `schedstat`, in nanoseconds. Without this file the result is empty.
    """
    waits: dict[str, float] = {}
    below = [str(pid)]
    for process in below:
        for thread in glob.glob(f"/proc/{process}/task/*"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                waits[thread] = int(Path(thread, "schedstat").read_text().split()[1]) / 1e9
                below += Path(thread, "children").read_text().split()
    return waits


def _end(owner: int, keeper: processes.Process, status: int, words: int) -> ExitStatus | None:
    """Make the keeper end all processes and itself, or kill them all. In a forked process, only close files."""
    if os.getpid() != owner:
        os.close(status)
        os.close(words)
        return None
    with contextlib.suppress(OSError):
        keeper.stdin.close()
    code = os.read(status, 100) if readable(status, _END_SECONDS) else b""
    if not code:  # the keeper was killed, or stopped
        keeper.kill()
        keeper.kill_marked()
    keeper.wait()
    text = os.pread(words, _WORDS, max(0, os.fstat(words).st_size - _WORDS)).decode("utf-8", "replace")
    text = text.partition("\n\nExtension modules: ")[0]  # a list of faulthandler's, which depends on what ran before
    keeper.stdout.close()
    os.close(status)
    os.close(words)
    return ExitStatus(json.loads(code or b"null"), cut(text.strip(), 2000))
