"""Workers: processes that answer questions side by side, each question at its own risk.

    with Pool(script, arguments, "grading", workers=4) as pool:
        answers = pool.ask_all(questions, cpu_seconds=10, clock_seconds=60)

A question that hangs, crashes or takes too much costs itself alone: its process is replaced. If it was killed from
outside, the question is asked again. Why not Pebble (5.2, measured by `benchmarks/grading.py`): it leaves alive what a
task had started, takes 4 seconds more for code that ignores signals, limits no memory or processor time, and is no
faster.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hone.errors import Halt, UserError
from hone.grading.inline import GraderFailure
from hone.grading.process import Closed, Ended, Garbled, Process, Reply, readable
from hone.types import Outcome

MEMORY_BYTES = 4 * 2**30
START_SECONDS = 600.0
"""How long a process may take until it is ready: what it loads may have to be downloaded."""
Heard = Callable[[int, Any], None]
"""Called with the number of questions answered, and the latest answer."""
_CLOSING_SECONDS = 10.0
"""How long a process that has closed its output may live on: one that is ending has closed it too."""
_AGAIN, _AGAIN_KEEPER = 1, 3
"""How often a question is asked again whose process, or its keeper, was killed from outside; an earlier question's code
may have killed the keeper."""


class StartFailure(Halt):
    """A process could not be started; the last line says why. A run that had others before saves what it has."""


class NoVerdict(Exception):
    """There is no answer to a question; `failure` says why."""

    def __init__(self, failure: GraderFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


@dataclass(eq=False)
class _Worker:
    """A process and the index of the question that it is at, with the number under which it was asked."""

    process: Process
    deadline: float
    ready: bool = False
    closing: bool = False
    index: int | None = None
    number: int = 0


class Pool:
    """At most `workers` processes that answer with the function that `start(*arguments)` of the file `script` returns.

    They run with the interpreter `python` (which needs nothing of hone), and may take `memory_bytes` beyond what they
    have when they are ready. They are started when there are questions for them, and end with the pool. Questions,
    answers and `arguments` are JSON. `environment` are variables that they get beside those of this process. `doing`
    says in a failure what a process was at: "grading". Safe to use from several threads, one after another; a process
    that is forked from this one has none of them and starts its own.
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
    ) -> None:
        self._script, self._arguments, self._python = script, list(arguments), python
        self._environment = dict(environment)
        self.doing, self.workers, self._memory = doing, workers, memory_bytes
        self._forget()
        _pools.add(self)

    def _forget(self) -> None:
        """Have no processes, whatever there were."""
        self._lock = threading.RLock()
        self._workers: list[_Worker] = []
        self._selector: selectors.BaseSelector | None = None

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Ids of the running processes."""
        return [worker.process.pid for worker in self._workers]

    def start(self, count: int) -> None:
        """Start processes until there are `count`, at most `workers`, without waiting for them to be ready."""
        with self._lock:
            while len(self._workers) < min(count, self.workers):
                self._hire()

    def ask_all(
        self,
        questions: Sequence[Any],
        cpu_seconds: float | None,
        clock_seconds: float,
        doing: str | None = None,
        heard: Heard = lambda done, answer: None,
    ) -> list[Any | GraderFailure]:
        """Return the answers in the order of the questions.

        A question that raises, or takes more than these seconds, has a failure for its answer. `cpu_seconds` of
        processor time (None: no limit) do not depend on how busy the machine is; `clock_seconds` are the backstop for a
        process that waits. StartFailure if a process does not become ready. Whatever else is raised here, as by Ctrl-C,
        ends all processes.
        """
        with self._lock:
            try:
                return _Round(self, questions, cpu_seconds, clock_seconds, doing or self.doing, heard).run()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """End the processes. The next question starts others."""
        with self._lock:
            workers, self._workers = self._workers, []  # none is known any more if this is interrupted
            selector, self._selector = self._selector, None
            if selector is not None:
                selector.close()
            for worker in workers:
                worker.process.let_go()
            for worker in workers:
                worker.process.finish()

    def _hire(self) -> None:
        process = Process(self._python, self._script, self._arguments, self._memory, self._environment)
        worker = _Worker(process, time.monotonic() + START_SECONDS)
        self._workers.append(worker)
        self._selector = self._selector or selectors.DefaultSelector()
        for fd in (process.answers, process.status):
            self._selector.register(fd, selectors.EVENT_READ, worker)
        if process.unsent:
            self._selector.register(process.questions, selectors.EVENT_WRITE, worker)

    def _remove(self, worker: _Worker) -> None:
        """Forget a process and no longer listen to it."""
        assert self._selector is not None
        self._workers.remove(worker)
        for fd in (worker.process.answers, worker.process.status, worker.process.questions):
            if fd in self._selector.get_map():
                self._selector.unregister(fd)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _after_fork() -> None:
    """Forget the processes in a forked process: their answers are for the one that asked."""
    for pool in list(_pools):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Round:
    """One call of `ask_all`."""

    def __init__(
        self, pool: Pool, questions: Sequence[Any], cpu: float | None, clock: float, doing: str, heard: Heard
    ) -> None:
        self.pool, self.questions, self.cpu, self.clock, self.doing = pool, questions, cpu, clock, doing
        self.heard = heard
        self.waiting = deque(range(len(questions)))
        self.answers: dict[int, Any] = {}
        self.again: Counter[int] = Counter()
        self.killed_at_start = 0
        self.gone: list[Process] = []

    def run(self) -> list[Any]:
        if self.questions and self.pool._workers:
            self.listen(0.0)  # to those that ended since the last round
        try:
            while len(self.answers) < len(self.questions):
                self.pool.start(len(self.questions) - len(self.answers))
                self.give()
                self.listen()
                for process in [process for process in self.gone if readable(process.status, 0)]:
                    process.finish()  # there may be more of them than a process can have files open
                    self.gone.remove(process)
        finally:
            for process in self.gone:
                process.finish()
        return [self.answers[index] for index in range(len(self.questions))]

    def give(self) -> None:
        """Give a question to each process that has none."""
        for worker in self.pool._workers:
            if self.waiting and worker.ready and not worker.closing and worker.index is None:
                worker.index = self.waiting.popleft()
                worker.number = worker.process.ask(self.questions[worker.index], self.cpu)
                worker.deadline = time.monotonic() + self.clock
                self.watch_questions(worker)

    def listen(self, patience: float | None = None) -> None:
        """Wait until a process has something to say or its time is up, and act on that."""
        selector = self.pool._selector
        assert selector is not None
        if patience is None:
            soonest = min(worker.deadline for worker in self.pool._workers)
            patience = max(0.0, soonest - time.monotonic())
        heard = {key.data for key, _ in selector.select(min(patience, 3600.0))}
        for worker in list(self.pool._workers):
            if worker in heard:
                self.hear(worker)
            elif time.monotonic() >= worker.deadline:
                self.too_late(worker)

    def hear(self, worker: _Worker) -> None:
        """Take what has come from a process."""
        process = worker.process
        process.send()
        self.watch_questions(worker)
        try:
            for reply in process.replies() if not worker.closing else ():
                if not self.take(worker, reply):
                    return
        except Garbled:
            self.let_go(worker)
            if not worker.ready:
                raise _start_failure(self.doing, "it wrote to the pipe of the answers while it started") from None
            self.fail(worker, _error(f"the process that was {self.doing} wrote what is no answer"))
        except Closed:
            worker.closing, worker.deadline = True, time.monotonic() + _CLOSING_SECONDS
            self.pool._selector.unregister(process.answers)  # type: ignore[union-attr]
        if worker.closing and readable(process.status, 0):
            self.pool._remove(worker)
            self.ended(worker, process.finish())

    def take(self, worker: _Worker, reply: Reply) -> bool:
        """Enter an answer. Return False if the process gives no more of them."""
        if reply.number == worker.process.first and not worker.ready:
            if reply.error is not None:
                raise _start_failure(self.doing, reply.error)
            worker.ready = True
        elif worker.index is None or reply.number != worker.number:
            raise Garbled
        else:
            self.enter(worker, reply.answer if reply.error is None else _error(reply.error))
        worker.deadline = float("inf")
        if reply.last:
            self.let_go(worker)
        return not reply.last

    def enter(self, worker: _Worker, answer: Any) -> None:
        """Note the answer to the question that a process was at."""
        assert worker.index is not None
        self.answers[worker.index] = answer
        worker.index = None
        self.heard(len(self.answers), answer)

    def ended(self, worker: _Worker, ended: Ended) -> None:
        """Handle a process that ended by itself: the question that it was at has no answer."""
        if not worker.ready:
            self.killed_at_start += ended.killed
            if not ended.killed or self.killed_at_start > self.pool.workers:
                raise _start_failure(self.doing, ended.failure("starting", None).detail)
            return
        index, most = worker.index, _AGAIN_KEEPER if ended.code is None else _AGAIN
        if index is not None and ended.killed and self.again[index] < most:
            self.again[index] += 1
            self.waiting.appendleft(index)
        else:
            self.fail(worker, ended.failure(self.doing, self.cpu))

    def too_late(self, worker: _Worker) -> None:
        """End a process that has let its time go by."""
        self.let_go(worker)
        if not worker.ready:
            late = f"it was not ready after {START_SECONDS:.0f} seconds"
            raise _start_failure(self.doing, "it closed its output" if worker.closing else late)
        if worker.closing:
            self.fail(worker, _error(f"the process that was {self.doing} closed its output"))
        else:
            self.fail(worker, GraderFailure(Outcome.GRADER_TIMEOUT, f"{self.doing} took {self.clock:g} seconds"))

    def fail(self, worker: _Worker, failure: GraderFailure) -> None:
        if worker.index is not None:
            self.enter(worker, replace(failure, lost=True))

    def let_go(self, worker: _Worker) -> None:
        """End a process without waiting for that."""
        self.pool._remove(worker)
        worker.process.let_go()
        self.gone.append(worker.process)

    def watch_questions(self, worker: _Worker) -> None:
        """Listen for the process to take more, if it has not taken all."""
        selector, fd = self.pool._selector, worker.process.questions
        assert selector is not None
        if worker.process.unsent != (fd in selector.get_map()):
            if worker.process.unsent:
                selector.register(fd, selectors.EVENT_WRITE, worker)
            else:
                selector.unregister(fd)


class Worker:
    """A process of its own for a library that may hang or die: a pool of one, asked one question at a time.

    It is started with the first question and ends with this object. `doing` says in a failure what took too long:
    "comparing the answer".
    """

    def __init__(self, script: Path, arguments: Sequence[Any], doing: str, python: str = sys.executable) -> None:
        self._pool = Pool(script, arguments, doing, python=python)

    def ask(self, question: Any, cpu_seconds: float, clock_seconds: float) -> Any:
        """Return the answer. Raises NoVerdict if the function raised, took too long, or could not be asked."""
        try:
            [answer] = self._pool.ask_all([question], cpu_seconds, clock_seconds)
        except StartFailure as error:
            answer = GraderFailure(Outcome.GRADER_ERROR, str(error))
        if isinstance(answer, GraderFailure):
            raise NoVerdict(answer)
        return answer

    def close(self) -> None:
        """End the process, if there is one."""
        self._pool.close()


def _error(detail: str) -> GraderFailure:
    return GraderFailure(Outcome.GRADER_ERROR, detail)


def _start_failure(doing: str, text: str) -> StartFailure:
    """Return the error for a process that did not start. Of a UserError's traceback its own words are enough."""
    reason = text.strip()
    mark = f"\n{UserError.__module__}.UserError: "
    return StartFailure(f"the process for {doing} could not start: {reason.rpartition(mark)[2]}")
