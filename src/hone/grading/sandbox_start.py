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
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hone.grading import sandbox_bubblewrap as bubblewrap
from hone.grading.sandbox_bubblewrap import Way
from hone.grading.sandbox_files import PACKAGES, Readable, base_executable, package_roots
from hone.grading.sandbox_watch import Tree

NO_MEMORY = 86
"""The exit code of code that ended with a MemoryError."""
_START_SECONDS = 60.0
"""How long a sandbox may take to be made, on a machine that is busy."""
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

    Raises OSError, with what was said, if it didn't come that far.
    """

    def __init__(self, place: Place, settings: dict[str, int], clock_seconds: float, code: bytes, stdin: bytes) -> None:
        self._way = place.way
        self._stack = contextlib.ExitStack()
        self._fds: set[int] = set()
        self.tree: Tree | None = None
        self.scratch: int | None = None
        try:
            self._start(place, settings, clock_seconds, code, stdin)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for fd in tuple(self._fds):
            self._drop(fd)

    def go(self) -> None:
        """Lets the code begin."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"g")

    def _start(self, place: Place, settings: dict[str, int], clock_seconds: float, code: bytes, stdin: bytes) -> None:
        code_fd, stdin_fd = self._file(code), self._file(stdin)
        self.report, report_inside = self._pipe()
        go_inside, self._go = self._pipe()
        given: dict[str, object] = {"code": code_fd, "report": report_inside, "go": go_inside, **settings}
        given["clock"] = math.ceil(clock_seconds) + _BACKSTOP_SECONDS
        inner = [code_fd, report_inside, go_inside]
        status = None
        if place.way is not None:
            assert place.shown is not None
            status, status_inside = self._pipe()
            filter_fd = self._file(place.filter)
            uid = 0 if place.way.user_namespace else bubblewrap.own_user(next(_numbers))
            given |= {"uid": uid, "scratch": "/scratch", "name": "/scratch/main.py", "adopt": 0}
            given["packages"] = PACKAGES if place.packages else ""
            given["processes"] = _most_tasks(place.way, uid, settings["processes"])
            command = bubblewrap.command(
                place.bwrap, place.way, place.shown, settings["file"], filter_fd, status_inside, _inside(given)
            )
            environment, folder, inner = {}, "/", [*inner, filter_fd, status_inside]
        else:
            folder = tempfile.mkdtemp(prefix="hone-scratch-")
            self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
            beside = os.pathsep.join(sorted({str(root.parent) for root in package_roots(place.packages)}))
            given |= {"uid": 0, "scratch": folder, "name": "main.py", "adopt": 1}
            given["packages"] = beside
            given["processes"] = _most_tasks(None, os.geteuid(), settings["processes"])
            command = [base_executable(), *_inside(given)]
            environment = bubblewrap.environment(folder) | {"PATH": os.defpath}
            del environment["LD_LIBRARY_PATH"]
        user = bubblewrap.NOBODY if place.way is not None and place.way.become_nobody else None
        with _fixed_addresses():
            self.process = subprocess.Popen(
                command,
                stdin=stdin_fd,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=inner,
                env=environment,
                cwd=folder,
                start_new_session=True,  # Ctrl-C is not for it
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
        self._stack.callback(self._leave)
        for fd in (*inner, stdin_fd):
            self._drop(fd)
        deadline = time.monotonic() + _START_SECONDS
        root = self.process.pid
        if status is not None:
            line = _line(status, deadline)
            root = json.loads(line)["child-pid"] if line else None
        if root is not None:
            self.tree = Tree(root)
        if root is None or _line(self.report, deadline) != b"ready\n":
            self.end()
            assert self.process.stderr is not None
            said = self.process.stderr.read().decode("utf-8", "replace").strip()
            raise OSError(said[-1000:] or f"it took more than {_START_SECONDS:.0f} seconds")
        if place.way is not None:
            with contextlib.suppress(OSError):
                self.scratch = os.open(f"/proc/{root}/root/scratch", os.O_PATH | os.O_DIRECTORY)
                self._fds.add(self.scratch)

    def end(self) -> None:
        """Ends the whole tree, and returns when it is gone."""
        if self._way is None and self.tree is not None:
            self.tree.kill_each()  # also those that have left the group, as far as they are found
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.tree is not None:
            self.tree.kill_root()  # of a namespace of processes: the kernel ends the others with it
        self.process.wait()
        if self.tree is not None and not self.tree.wait():
            raise OSError("the sandbox's processes don't end")

    def _leave(self) -> None:
        """Ends what still runs, and closes the pipes."""
        self.end()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        if self.tree is not None:
            self.tree.close()

    def _file(self, content: bytes) -> int:
        """A file in memory that nobody can change, open at its beginning."""
        fd = os.memfd_create("code", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._fds.add(fd)
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(
            fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        )
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


def _inside(given: dict[str, object]) -> list[str]:
    """The interpreter's arguments. Numbers are of one length, so that they take the same memory each time."""
    words = [f"{key}={value:016d}" if isinstance(value, int) else f"{key}={value}" for key, value in given.items()]
    return ["-P", "-s", "-S", "-B", "-X", "utf8", "-c", _SOURCE, *words, f"no_memory={NO_MEMORY}"]


def _line(source: int, deadline: float) -> bytes:
    """The first line of a pipe; what there is of it, if it ends or the time is over."""
    line = b""
    while not line.endswith(b"\n") and select.select([source], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(source, 1)
        if not part:
            break
        line += part
    return line


def _most_tasks(way: Way | None, uid: int, processes: int) -> int:
    """The limit of the kernel (RLIMIT_NPROC) that leaves the code `processes`: it counts what else the user runs, but
    from Linux 5.14 on only within the user namespace. Two are those of `sandbox_main.py`.
    """
    if way is not None and not way.user_namespace:
        return processes + 2 + (_tasks_of(uid) if uid == bubblewrap.NOBODY else 0)
    if way is None:
        return processes + 2 + _tasks_of(uid)
    apart = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2]) >= (5, 14)
    outside = bubblewrap.NOBODY if way.become_nobody else os.geteuid()
    return processes + 2 + (0 if apart else _tasks_of(outside))


def _tasks_of(uid: int) -> int:
    """Processes and threads of a user, on the whole machine."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                total += len(os.listdir(f"/proc/{pid}/task"))
    return total
