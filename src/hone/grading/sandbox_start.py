"""Starting the process that runs a piece of code, in a sandbox or plainly, up to the moment where the code begins."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hone.errors import UserError
from hone.grading import sandbox_bubblewrap as bubblewrap
from hone.grading.pool import readable
from hone.grading.sandbox_bubblewrap import PACKAGES, Readable, Way, base_executable, package_roots
from hone.grading.sandbox_watch import Tree

NO_MEMORY = 86
"""The exit code of code that ended with a MemoryError."""
NOT_STARTED = "the sandbox did not start: "
OWN_TASKS = 3
"""Process and threads of `sandbox_main.py` itself."""
_START_SECONDS = 60.0
"""How long a sandbox may take to be made, on a machine that is busy."""
_REAP_SECONDS = 10.0
"""How long bubblewrap may take to end after its child, on a machine that is busy."""
_BACKSTOP_SECONDS = 5
"""How long after its deadline code ends by itself, where hone is gone and nobody noticed."""
_SOURCE = Path(__file__).with_name("sandbox_main.py").read_text(encoding="utf-8")
_ASK, _ADDR_NO_RANDOMIZE = 0xFFFFFFFF, 0x0040000
"""Of personality(2)."""
_numbers = itertools.count()


@dataclass(frozen=True)
class Place:
    """Where code runs: how bubblewrap is called, with what filter and files; without a way, as a plain process."""

    way: Way | None
    bwrap: str = ""
    filter: bytes = b""
    shown: Readable | None = None
    packages: tuple[str, ...] = ()


class Started:
    """A process that stands right before the code; `go` lets it begin, and leaving the context ends all of its tree.

    Raises OSError, with its stderr, if it didn't come that far; UserError where no process can be waited for.
    """

    def __init__(self, place: Place, settings: dict[str, int], clock_seconds: float, code: bytes, stdin: bytes) -> None:
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # what is started would do so too, and may not stop it
            raise UserError(
                "the sandbox learns how code ended from its parent, which a process that ignores SIGCHLD cannot be: "
                "signal.signal(signal.SIGCHLD, signal.SIG_DFL)"
            )
        self._way = place.way
        self._stack = contextlib.ExitStack()
        self._fds: set[int] = set()
        self.tree: Tree | None = None
        self.scratch: int | None = None
        try:
            code_fd, stdin_fd = self._sealed(code), self._sealed(stdin)
            self.report, report_inside = self._pipe()
            go_inside, self._go = self._pipe()
            clock = math.ceil(clock_seconds) + _BACKSTOP_SECONDS
            given = {"code": code_fd, "report": report_inside, "go": go_inside, "clock": clock, **settings}
            inherited = [code_fd, report_inside, go_inside]
            if place.way is None:
                self._status = None
                command, environment, folder = self._plain(place, given)
            else:
                # A file, not a pipe: bubblewrap would die of a pipe that hone no longer reads, and strand its child.
                self._status = self._file(b"")
                filter_fd = self._sealed(place.filter)
                command, environment, folder = self._sandboxed(place, place.way, given, filter_fd)
                inherited += [self._status, filter_fd]
            self.process = self._open(command, environment, folder, stdin_fd, inherited)
            self._stack.callback(self._leave)
            self.ended = os.pidfd_open(self.process.pid)
            self._fds.add(self.ended)
            for fd in {*inherited, stdin_fd} - {self._status}:
                self._drop(fd)
            self._await()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stack.close()
        finally:
            for fd in tuple(self._fds):
                self._drop(fd)

    def go(self) -> None:
        """Let the code begin."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"g")

    def end(self) -> None:
        """End the whole tree, and return when it is gone."""
        if self._way is None and self.tree is not None and self.process.returncode is None:
            self.tree.kill_below()  # also those that have left the group
        gone = True
        if self.tree is not None:
            self.tree.kill_root()  # of a namespace of processes: the kernel ends the others with it
            gone = self.tree.wait()
            # bubblewrap takes leave of its child, and ends; killed before, it would leave a dead process to this one
            # where that is the first of a container.
            readable(self.ended, _REAP_SECONDS)
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if not gone:
            raise OSError("the sandbox's processes don't end")

    def _plain(self, place: Place, given: dict[str, int]) -> tuple[list[str], dict[str, str], str]:
        """Command, environment and folder of a plain process."""
        folder = tempfile.mkdtemp(prefix="hone-scratch-")
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        most = _most_tasks(None, os.geteuid(), given["processes"])
        given |= {"uid": 0, "adopt": 1, "processes": most}
        beside = os.pathsep.join(sorted({str(root.parent) for root in package_roots(place.packages)}))
        environment = bubblewrap.environment(folder) | {"PATH": os.defpath}
        del environment["LD_LIBRARY_PATH"]
        return [base_executable(), *_inside(given, folder, "main.py", beside)], environment, folder

    def _sandboxed(
        self, place: Place, way: Way, given: dict[str, int], filter_fd: int
    ) -> tuple[list[str], dict[str, str], str]:
        """Command, environment and folder of bubblewrap."""
        assert place.shown is not None and self._status is not None
        uid = 0 if way.user_namespace else bubblewrap.own_user(next(_numbers))
        given |= {"uid": uid, "adopt": 0, "processes": _most_tasks(way, uid, given["processes"])}
        inside = _inside(given, "/scratch", "/scratch/main.py", PACKAGES if place.packages else "")
        size = given["file"]
        return bubblewrap.command(place.bwrap, way, place.shown, size, filter_fd, self._status, inside), {}, "/"

    def _open(
        self, command: list[str], environment: dict[str, str], folder: str, stdin: int, inherited: list[int]
    ) -> subprocess.Popen[bytes]:
        user = bubblewrap.NOBODY if self._way is not None and self._way.become_nobody else None
        with _fixed_addresses():
            return subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=inherited,
                env=environment,
                cwd=folder,
                start_new_session=True,  # Ctrl-C is not for it
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )

    def _await(self) -> None:
        """Wait until the process stands before the code, and find its tree."""
        ready = _line(self.report, time.monotonic() + _START_SECONDS) == b"ready\n"
        root = self.process.pid
        if self._status is not None:
            status = os.pread(self._status, 4096, 0).partition(b"\n")[0]
            root = json.loads(status)["child-pid"] if ready else 0
        if not ready:
            raise OSError(f"{NOT_STARTED}{self._failed()}")
        self.tree = Tree(root)
        with contextlib.suppress(OSError):  # if the machine runs out of memory, the kernel is to end this, not hone
            Path(f"/proc/{root}/oom_score_adj").write_text("1000")
        if self._way is not None:
            with contextlib.suppress(OSError):
                self.scratch = os.open(f"/proc/{root}/root/scratch", os.O_PATH | os.O_DIRECTORY)
                self._fds.add(self.scratch)

    def _failed(self) -> str:
        """End a process that didn't come to the code, and return its stderr."""
        self._withdraw()
        assert self.process.stderr is not None
        os.set_blocking(self.process.stderr.fileno(), False)
        text = (self.process.stderr.read() or b"").decode("utf-8", "replace").strip()
        return text[-1000:] or f"it took more than {_START_SECONDS:.0f} seconds"

    def _withdraw(self) -> None:
        """Let a process that waits for the word to go, or soon will, see that nobody is there: it ends by itself.

        To kill bubblewrap while it sets up would strand its child.
        """
        self._drop(self._go)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_BACKSTOP_SECONDS)

    def _leave(self) -> None:
        """End what still runs, and close the pipes."""
        if self.tree is None and self._go in self._fds:  # Ctrl-C came before it was ready
            self._withdraw()
        try:
            self.end()
        finally:
            for pipe in (self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()
            if self.tree is not None:
                self.tree.close()

    def _file(self, content: bytes) -> int:
        """Return a file in memory, open at its beginning."""
        fd = os.memfd_create("hone", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._fds.add(fd)
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def _sealed(self, content: bytes) -> int:
        """Return a file in memory that nobody can change."""
        fd = self._file(content)
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd

    def _pipe(self) -> tuple[int, int]:
        ends = os.pipe()
        self._fds.update(ends)
        return ends

    def _drop(self, fd: int) -> None:
        self._fds.discard(fd)
        os.close(fd)


@contextlib.contextmanager
def _fixed_addresses() -> Iterator[None]:
    """What this thread starts meanwhile has its memory at the same addresses each time, so `print(object())` is the
    same text. Code that may call anything is not kept from anything by not knowing addresses.
    """
    libc = ctypes.CDLL(None)
    before = libc.personality(_ASK)
    if before != -1:
        libc.personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        if before != -1:
            libc.personality(before)


def _inside(given: dict[str, int], scratch: str, name: str, packages: str) -> list[str]:
    """Return the interpreter's arguments. Numbers are of one length, so that they take the same memory each time."""
    words = [f"{key}={value:016d}" for key, value in {**given, "no_memory": NO_MEMORY}.items()]
    return ["-P", "-s", "-S", "-B", "-X", "utf8", "-c", _SOURCE, scratch, name, packages, *words]


def _line(source: int, deadline: float) -> bytes:
    """Return the first line of a pipe; what there is of it, if it ends or the time is over."""
    line = b""
    while not line.endswith(b"\n") and readable(source, max(0.0, deadline - time.monotonic())):
        part = os.read(source, 1)
        if not part:
            break
        line += part
    return line


def _most_tasks(way: Way | None, uid: int, processes: int) -> int:
    """The limit of the kernel (RLIMIT_NPROC) that leaves the code `processes`: it counts what else the user runs, but
    from Linux 5.14 on only within the user namespace.
    """
    if way is not None and not way.user_namespace:
        return processes + OWN_TASKS + (_tasks_of(uid) if uid == bubblewrap.NOBODY else 0)
    if way is None:
        return processes + OWN_TASKS + _tasks_of(uid)
    apart = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2]) >= (5, 14)
    outside = bubblewrap.NOBODY if way.become_nobody else os.geteuid()
    return processes + OWN_TASKS + (0 if apart else _tasks_of(outside))


def _tasks_of(uid: int) -> int:
    """Processes and threads of a user, on the whole machine."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                total += len(os.listdir(f"/proc/{pid}/task"))
    return total
