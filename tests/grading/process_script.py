"""What a process of `hone.grading.pool` may be asked to do in its tests: each function is one way to go wrong."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn


def start(pids: str, broken: str = "") -> Callable[[Any], Any]:
    """Answers with the question, after it has done what is named so; `pids` gets forked processes' ids."""
    if broken == "raises":
        raise ValueError("the data is not there")
    if broken == "dies":
        print("no such library", file=sys.stderr, flush=True)
        os._exit(7)
    if broken == "is killed once" and not Path(pids).read_text():
        Path(pids).write_text("killed\n")
        os.kill(os.getpid(), signal.SIGKILL)
    if broken == "is always killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if broken == "writes":
        os.write(answers_pipe(), b"hello\n")
    print("a warning while it starts", file=sys.stderr, flush=True)
    Ways.pids = Path(pids)
    ways = Ways()

    def answer(question: Any) -> Any:
        Ways.begun += 1
        way = getattr(ways, question.replace(" ", "_"), None) if isinstance(question, str) else None
        shown = None if way is None else way()
        return question if shown is None else shown

    return answer


class Ways:
    """The ways; what they return, if anything, is the answer."""

    pids: Path
    begun = 0
    """How many questions were begun."""

    def spin(self) -> NoReturn:
        while True:
            pass

    def sleep_a_little(self) -> None:
        time.sleep(0.5)

    def sleep(self) -> None:
        time.sleep(600)

    def wait_for_a_core(self) -> None:
        """Works until it has waited for a core, while it could run, for a second and a half."""
        begun = self._nanoseconds_waited()
        while self._nanoseconds_waited() < begun + 1.5e9:
            pass

    def _nanoseconds_waited(self) -> int:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])

    def exit_at_once(self) -> None:
        os._exit(0)

    def crash(self) -> None:
        ctypes.string_at(0)

    def take_8_gib(self) -> int:
        return len(bytearray(8 * 2**30))

    def be_killed_once(self) -> None:
        if not self.pids.read_text():
            self.be_killed()

    def be_killed(self) -> None:
        self._tell(os.getpid())
        os.kill(os.getpid(), signal.SIGKILL)

    def kill_its_parent(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

    def kill_its_parent_and_answer(self) -> None:
        os.kill(os.getppid(), signal.SIGKILL)

    def stop_its_parent_and_sleep(self) -> None:
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(600)

    def close_everything(self) -> None:
        os.closerange(0, 4096)

    def close_everything_and_sleep(self) -> None:
        os.closerange(0, 4096)
        time.sleep(600)

    def close_the_streams(self) -> None:
        for stream in (sys.stdin, sys.stdout, sys.stderr):
            stream.close()

    def print_much(self) -> None:
        for _ in range(100):
            print("x" * 2**20)
            os.write(1, b"[1, false, 99, null]\n" * 1000)
            os.write(2, b"[1, false, 99, null]\n" * 1000)

    def answer_much(self) -> str:
        return "x" * (17 * 2**20)

    def half_an_answer(self) -> None:
        os.write(answers_pipe(), b"[1, fal")
        os._exit(4)

    def a_wrong_answer(self) -> None:
        os.write(answers_pipe(), b'[7, false, "lie", null]\n')

    def a_gigabyte(self) -> None:
        pipe = answers_pipe()
        for _ in range(1024):
            os.write(pipe, b"x" * 2**20)

    def change_all_there_is(self) -> None:
        os.chdir("/")
        os.environ["LANG"] = "nowhere"
        json.dumps = json.loads = json.JSONEncoder.encode = None  # type: ignore[assignment]
        for number in (signal.SIGINT, signal.SIGPROF, signal.SIGXCPU, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        signal.alarm(1)
        sys.setrecursionlimit(50_000)
        sys.stdout = None  # type: ignore[assignment]

    def tell_all_there_is(self) -> list[Any]:
        handlers = [signal.getsignal(number) for number in (signal.SIGPROF, signal.SIGXCPU, signal.SIGALRM)]
        return [
            os.getcwd(),
            os.environ.get("LANG"),
            [int(handler or 0) for handler in handlers],
            signal.alarm(0),
            sys.getrecursionlimit() == 1000,
            sys.stdout is not None,
        ]

    def tell_its_limits(self) -> list[Any]:
        limits = [
            resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_CORE)
        ]
        return [signal.getitimer(signal.ITIMER_PROF)[0], time.process_time(), *limits]

    def fork_and_spin(self) -> None:
        if self._fork():
            time.sleep(600)
        self.spin()

    def fork_many_that_spin(self) -> None:
        """Twenty share one core, so that each waits for it nearly all the time."""
        for _ in range(20):
            if self._fork():
                os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
                self.spin()
        time.sleep(8)

    def fork_and_answer_twice(self) -> None:
        self._fork()

    def leave_a_child(self) -> None:
        if self._fork():
            time.sleep(600)

    def leave_a_daemon(self) -> None:
        """Twice forked, in a session of its own, without our environment: as daemons do it."""
        if os.fork() == 0:
            os.setsid()
            child = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
            self._tell(child.pid)
            os._exit(0)
        os.wait()

    def run_a_program(self) -> str:
        return subprocess.run(["echo", "hello"], capture_output=True, text=True, check=True).stdout

    def work_in_threads(self) -> int:
        found: list[int] = []
        threads = [threading.Thread(target=lambda i=i: found.append(i)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(found)

    def leave_a_thread(self) -> None:
        threading.Thread(target=self.spin, daemon=True).start()

    def leave_an_end(self) -> None:
        """Ends the process as soon as it is at another question."""
        begun = Ways.begun

        def end() -> None:
            while Ways.begun == begun:
                time.sleep(0.01)
            os._exit(5)

        threading.Thread(target=end, daemon=True).start()

    def spin_a_while(self) -> None:
        end = time.thread_time() + 1.0
        while time.thread_time() < end:
            pass

    def _fork(self) -> bool:
        """True in the process that was forked."""
        if pid := os.fork():
            self._tell(pid)
        return pid == 0

    def _tell(self, pid: int) -> None:
        with self.pids.open("a") as file:
            file.write(f"{pid}\n")


def answers_pipe() -> int:
    """The pipe that answers go through: the only one that is no standard stream and can be written to."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if fd > 2 and stat.S_ISFIFO(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_WRONLY:
                return fd
    raise LookupError
