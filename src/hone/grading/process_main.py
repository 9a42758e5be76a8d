"""The processes of `hone.grading.pool`. Imports nothing of hone.

    python -P process_main.py STATUS_FD

The process forks at once. The parent, the *keeper*, waits until the worker has ended or hone is gone. Then it kills all
processes of the worker, also in another group or session, and writes the worker's exit code to STATUS_FD. The
child, the *worker*, reads `{"script", "arguments", "memory", "number"}` from the standard input. `start(*arguments)` of
the file `script` returns the function that answers questions. The worker writes a line with `number` when it is ready.
Then it answers each line `[number, seconds, question]` by a line `[number, last, answer, error]`, where `error` is a
traceback or null. If the function left traces (see `Traces`), `last` is true and the worker ends.

The kernel ends a worker if a question takes more than `seconds` of processor time (null: no limit). The function's
output is dropped, its standard input is empty, and a process that it forks cannot answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import logging
import math
import os
import resource
import runpy
import select
import signal
import sys
import time
import traceback

IS_HONE_WORKER = True
"""Checked by `hone.grading.inline.inside`."""
MAX_ANSWER = 16 * 2**20
"""Maximum bytes of an answer."""
PAUSES = (0.001, 0.004, 0.02, 0.05)
"""Seconds between checks that leftover processes and threads have ended."""
_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPROF, signal.SIGXCPU, signal.SIGCHLD]
"""The handlers of these signals are restored between questions."""
_IDLE = {"threading", "queue", "selectors", "multiprocessing.pool"}
_IDLE |= {"concurrent.futures.thread", "concurrent.futures._base"}
"""A thread in these modules is idle."""
_DEATH_SIGNAL, _SUBREAPER = 1, 36
"""PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of prctl(2)."""


def main() -> None:
    status = int(sys.argv[1])
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _prctl(_SUBREAPER, 1)
    keeper = os.getpid()
    if worker := os.fork():
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        code = keep(worker, woken)
        with contextlib.suppress(BrokenPipeError):
            os.write(status, json.dumps(code).encode())
        os._exit(0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in (woken, wake, status):
        os.close(fd)
    os.setsid()
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() == keeper:
        work(keeper)
    os._exit(1)


def keep(worker: int, woken: int) -> int | None:
    """Wait for the worker, and kill its processes. Return its exit code (-N: signal N); None if hone ended first."""
    poller = select.poll()
    poller.register(0, 0)  # reports only that hone closed the other end, or ended
    poller.register(woken, select.POLLIN)
    code = None
    while code is None:
        events = dict(poller.poll())
        if woken in events:
            os.read(woken, 4096)
        code = _reap(worker)
        if 0 in events:
            break
    _end_descendants(worker)
    return code


def work(keeper: int) -> None:
    pid = os.getpid()
    questions, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.register_at_fork(after_in_child=lambda: os.close(answers))
    node = os.fstat(answers).st_ino
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    encode, decode = json.JSONEncoder().encode, json.JSONDecoder().decode

    def say(number: int, last: bool, answered: str = "null", error: str | None = None) -> None:
        if os.getpid() != pid or os.fstat(answers).st_ino != node:
            os._exit(1)
        data = f"[{number}, {encode(last)}, {answered}, {encode(error)}]\n".encode()
        while data:
            data = data[os.write(answers, data) :]

    setting = decode(questions.readline().decode())
    try:
        answer = runpy.run_path(setting["script"])["start"](*setting["arguments"])
    except BaseException:
        say(setting["number"], True, error=traceback.format_exc())
        os._exit(0)
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(OSError):  # output of the start doesn't explain the end
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
    faulthandler.enable(os.dup(2), all_threads=False)
    os.dup2(nowhere, 2)
    _limit_memory(setting["memory"])
    here = Surroundings()
    traces = Traces(keeper, setting["memory"])
    say(setting["number"], False)
    for line in questions:
        number, seconds, question = decode(line.decode())
        _limit_time(seconds)
        answered, error = "null", None
        try:
            answered = encode(answer(question))
        except BaseException:
            error = traceback.format_exc()
        if len(answered) > MAX_ANSWER:
            answered, error = "null", f"an answer of {len(answered)} bytes, which is too long"
        here.restore()
        last = traces.left()
        _limit_time(None)
        say(number, last, answered, error)
        if last:
            os._exit(0)


class Surroundings:
    """State of the process that the task's code may change. hone restores it between questions."""

    def __init__(self) -> None:
        self._folder = os.getcwd()
        self._environ = os.environ.copy()
        self._variables = vars(os.environ)["_data"]  # quick to compare
        self._encoded = dict(self._variables)
        self._handlers = [(number, signal.getsignal(number)) for number in _SIGNALS]
        self._depth = sys.getrecursionlimit()
        self._streams = sys.stdin, sys.stdout, sys.stderr

    def restore(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._handlers:
            if signal.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        with contextlib.suppress(OSError):
            os.chdir(self._folder)
        if self._variables != self._encoded:
            os.environ.clear()
            os.environ.update(self._environ)
        if sys.getrecursionlimit() != self._depth:
            sys.setrecursionlimit(self._depth)
        if any(stream is None or stream.closed for stream in self._streams):
            self._streams = open(os.devnull), open(os.devnull, "w"), open(os.devnull, "w")  # noqa: SIM115
        sys.stdin, sys.stdout, sys.stderr = self._streams
        nowhere = os.open(os.devnull, os.O_RDWR)
        for fd in {0, 1, 2} - {nowhere}:
            os.dup2(nowhere, fd)
        if nowhere > 2:
            os.close(nowhere)


def _limit_time(seconds: float | None) -> None:
    """Limit processor time from now on. A timer limits this process, and a higher RLIMIT_CPU limits its forks."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    whole = hard if seconds is None else math.ceil(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (whole, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds or 0)


def _limit_memory(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    size += taken()
    with contextlib.suppress(OSError, ValueError):  # a system without this limit
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = size if hard == resource.RLIM_INFINITY else min(size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class Traces:
    """What the task's code left behind and hone can't undo: processes, busy threads, memory above half of the limit."""

    def __init__(self, keeper: int, memory: int) -> None:
        self._pid = os.getpid()
        self._lists = [f"/proc/{pid}/task/{pid}/children" for pid in (self._pid, keeper)]
        self._at_first, self._most = self._processes(), taken() + memory / 2
        self._threads = set(sys._current_frames())

    def left(self) -> bool:
        """Return True if the code left traces. Waits briefly for processes and threads to end."""
        for pause in PAUSES:
            if not self._threads_at_work() and not any(map(_lives, self._processes() - self._at_first)):
                return taken() > self._most
            time.sleep(pause)
        return True

    def _threads_at_work(self) -> bool:
        """Return True if a new Python thread is busy. A pool's waiting thread is not busy."""
        frames = sys._current_frames()
        return any(frames[thread].f_globals.get("__name__") not in _IDLE for thread in frames.keys() - self._threads)

    def _processes(self) -> set[int]:
        """Return the children of this process, and the orphans that the keeper took over."""
        mine = set()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            mine = _numbers(self._lists[0]) or {0}
        return mine | (_numbers(self._lists[1]) - {self._pid})


def _lives(pid: int) -> bool:
    """Return True if a process has not ended. An ended process keeps its pid until the keeper reaps it."""
    if pid == 0:  # stands for children that can't be listed
        return True
    state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return bool(state) and state[0] not in (b"Z", b"X")


def taken() -> int:
    """Return the bytes of this process's address space; 0 on systems other than Linux."""
    pages = _read("/proc/self/statm").split()
    return int(pages[0]) * resource.getpagesize() if pages else 0


def _numbers(path: str) -> set[int]:
    return set(map(int, _read(path).split()))


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, 2**16)
    except OSError:  # the process ended meanwhile
        return b""
    finally:
        os.close(fd)


def _reap(worker: int) -> int | None:
    """Reap ended descendants of the keeper; return the worker's exit code if the worker is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == worker:
                code = os.waitstatus_to_exitcode(status)
    return code


def _end_descendants(worker: int) -> None:
    """Kill all descendants. They are stopped first, so that they can't fork any more."""
    while True:
        stopped: set[int] = set()
        while found := _descendants(worker) - stopped:
            for pid in found:
                _kill(pid, signal.SIGSTOP)
            stopped |= found
        for pid in stopped:
            _kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return


def _descendants(worker: int) -> set[int]:
    """Return all descendants. If there is no /proc, kill the worker's group and return the worker."""
    if not os.path.exists("/proc/self/stat"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        return {worker}
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                children.setdefault(int(parent), []).append(int(name))
    found, todo = set(), [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found |= set(below)
        todo += below
    return found


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
