"""Runs untrusted Python code: a new, isolated process tree for each call.

    ran = Sandbox().run("print(6 * 7)")
    ran.status, ran.output  # ("ok", "42\\n")

bubblewrap gives the code new namespaces, a file system with the interpreter and an empty scratch folder, no network and
no rights. A filter (`seccomp.py`) refuses system calls that no calculation makes. The kernel limits only single
processes, so hone reads /proc at short intervals and adds up processor time, memory and tasks of the tree. `main.py`
starts the code. See docs/tasks.md for the guarantees.
"""

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
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hone.errors import UserError
from hone.extensions.sandbox import bubblewrap, seccomp
from hone.extensions.sandbox.bubblewrap import PACKAGES, Readable, Way, base_executable, package_roots
from hone.grading.pool import readable
from hone.processes import Process, signal_name

Status = Literal["ok", "error", "timeout", "memory", "output", "processes"]
Isolation = Literal["bubblewrap", "none"]

NO_MEMORY = 86
"""Exit code of a program that ended with a MemoryError."""
NOT_STARTED = "the sandbox did not start: "
OWN_TASKS = 3
"""Number of tasks (a process and threads) that `main.py` itself takes."""
INTERVAL = 0.05
"""Seconds between checks of a process tree's usage."""
GONE_SECONDS = 10.0
"""Longest time for the kernel to end a killed tree, and for bubblewrap to end after its child."""
_START_SECONDS = 60.0
"""Longest time to make a sandbox, on a busy machine."""
_BACKSTOP_SECONDS = 5
"""Seconds after the deadline until `main.py` ends the code."""
_INODES = 16384
"""Most files and folders in the scratch folder. No other limit counts the kernel memory that files take."""
_SOURCE = Path(__file__).with_name("main.py").read_text(encoding="utf-8")
_ASK, _ADDR_NO_RANDOMIZE = 0xFFFFFFFF, 0x0040000
"""Arguments of personality(2)."""
_TICK = os.sysconf("SC_CLK_TCK")
_RESIDENT = (b"RssAnon", b"RssShmem", b"VmSwap")
_PROPORTIONAL = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
_KERNEL_KNOWS_CHILDREN = os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")
"""True if the kernel lists child processes (CONFIG_PROC_CHILDREN), as in all large distributions."""
_works: dict[tuple[str, tuple[str, ...], int], Place] = {}
"""Places that worked before, by path of bubblewrap, packages and user id."""
_warned = threading.Event()
_numbers = itertools.count()


@dataclass(frozen=True)
class Limits:
    """Limits of one call, over all of its processes."""

    cpu_seconds: float = 5
    """Processor time of all processes together. The limit of a single process is rounded up to whole seconds."""
    clock_seconds: float = 15
    memory_mib: int = 512
    """Memory of all processes together. Also limits the address space of each process."""
    processes: int = 16
    """Processes and threads at one time."""
    output_bytes: int = 65536
    """Most bytes of standard output, and of standard error."""
    scratch_mib: int = 64
    """Size of the scratch folder, and of the largest file."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise UserError(f"the sandbox's limit {name} is {value!r}: give a positive number")
        if self.memory_mib < 64:
            raise UserError(f"the sandbox's limit memory_mib is {self.memory_mib}: give at least 64")


PROBE = Limits(cpu_seconds=30, clock_seconds=30, memory_mib=2048, processes=4, scratch_mib=1)
"""Limits of a trial sandbox."""


@dataclass(frozen=True)
class Ran:
    """The result of running code.

    `status` is "ok" (exit code 0), "error" (an exception, or any other end), or the limit that ended the code:
    "timeout" (of processor or clock), "memory" (also for an uncaught MemoryError), "output" or "processes".
    """

    output: str
    errors: str
    """The standard error, with the traceback of an uncaught exception."""
    status: Status
    exit_code: int | None
    """As in `subprocess`: -N if signal N ended the code. None if a limit ended the code."""
    seconds: float


@dataclass(frozen=True)
class Place:
    """A way to run code: bubblewrap with a filter and files or, if `way` is None, a plain process."""

    way: Way | None
    bwrap: str = ""
    filter: bytes = b""
    mounts: Readable | None = None
    packages: tuple[str, ...] = ()


class Sandbox:
    """Runs code within `limits`. The code may import the standard library and `packages` (import names, like "sympy").

    `isolation` "none" hides only environment variables from the code: use it on a machine that has nothing to lose.
    Raises UserError, with reason and remedy, if bubblewrap is missing or does not work here.
    """

    def __init__(
        self, limits: Limits | None = None, isolation: Isolation = "bubblewrap", packages: tuple[str, ...] = ()
    ) -> None:
        self.limits = limits or Limits()
        self.isolation = isolation
        self.packages = (packages,) if isinstance(packages, str) else tuple(packages)
        if isolation not in ("bubblewrap", "none"):
            raise UserError(f'isolation is "bubblewrap" or "none", not "{isolation}"')
        if sys.platform != "linux":
            raise UserError(f"the sandbox needs Linux; this is {sys.platform}")
        if isolation == "none":
            package_roots(self.packages)
            self._place = Place(None, packages=self.packages)
            if not _warned.is_set():
                _warned.set()
                warning = 'hone: isolation "none": code of the model runs with all your rights on this machine'
                print(warning, file=sys.stderr)
        else:
            bwrap, program = bubblewrap.executable(), seccomp.program()
            mounts = bubblewrap.readable(self.packages)
            self._place = _way_that_works(Place(None, bwrap, program, mounts, self.packages))

    def run(self, code: str, stdin: str = "") -> Ran:
        """Run `code` as the main module of a new interpreter, with standard input `stdin`. Blocks until it ends.

        Threads may share a sandbox. Raises OSError if the process can't start, UserError if an argument is not text.
        """
        for name, text in (("code", code), ("stdin", stdin)):
            if not isinstance(text, str):
                raise UserError(f"{name} is a {type(text).__name__}; the sandbox takes text")
        texts = (text.encode("utf-8", "surrogatepass") for text in (code, stdin))
        with Started(self._place, self.limits, *texts) as started:
            return started.run()


def _way_that_works(place: Place) -> Place:
    key = (place.bwrap, place.packages, os.geteuid())
    if key in _works:
        return _works[key]
    reasons = []
    for way in bubblewrap.ways():
        tried = replace(place, way=way)
        try:
            with Started(tried, PROBE, b"", b""):
                _works[key] = tried
                return tried
        except OSError as error:
            reasons.append(str(error).removeprefix(NOT_STARTED))
    raise bubblewrap.refusal(reasons)


class Started:
    """A process that is ready for the code. `run` starts the code; leaving the context ends the process tree.

    Raises OSError, with the process's stderr, if it can't start; UserError if the calling process ignores SIGCHLD.
    """

    def __init__(self, place: Place, limits: Limits, code: bytes, stdin: bytes) -> None:
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # children would inherit this
            raise UserError(
                "this process ignores SIGCHLD, so the sandbox can't learn how code ended: call "
                "signal.signal(signal.SIGCHLD, signal.SIG_DFL)"
            )
        self._way, self._limits = place.way, limits
        self._stack = contextlib.ExitStack()
        self._fds: set[int] = set()
        self.tree: Tree | None = None
        self._scratch: int | None = None
        self._status: int | None = None
        try:
            code_fd, stdin_fd = self._file(code, sealed=True), self._file(stdin, sealed=True)
            self._report, report_inside = self._pipe()
            go_inside, self._go = self._pipe()
            inherited = [code_fd, report_inside, go_inside]
            given = {
                "code": code_fd,
                "report": report_inside,
                "go": go_inside,
                "clock": math.ceil(limits.clock_seconds) + _BACKSTOP_SECONDS,
                "cpu": math.ceil(limits.cpu_seconds),
                "memory": limits.memory_mib << 20,
                "file": limits.scratch_mib << 20,
                "no_memory": NO_MEMORY,
            }
            if place.way is None:
                folder = tempfile.mkdtemp(prefix="hone-scratch-")
                self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
                given |= {"uid": 0, "group": 1, "processes": _most_tasks(None, os.geteuid(), limits.processes)}
                beside = os.pathsep.join(sorted({str(root.parent) for root in package_roots(place.packages)}))
                environment = bubblewrap.environment(folder) | {"PATH": os.defpath}
                del environment["LD_LIBRARY_PATH"]
                command = [base_executable(), *_inside(given, folder, "main.py", beside)]
            else:
                # Not a pipe: bubblewrap would die of a pipe that nobody reads, and leave its child.
                self._status, filter_fd = self._file(b""), self._file(place.filter, sealed=True)
                inherited += [self._status, filter_fd]
                uid = 0 if place.way.user_namespace else bubblewrap.own_user(next(_numbers))
                given |= {"uid": uid, "group": 0, "processes": _most_tasks(place.way, uid, limits.processes)}
                inside = _inside(given, "/scratch", "/scratch/main.py", PACKAGES if place.packages else "")
                assert place.mounts is not None
                command = bubblewrap.command(
                    place.bwrap, place.way, place.mounts, given["file"], filter_fd, self._status, inside
                )
                environment, folder = {}, "/"
            user = bubblewrap.NOBODY if place.way is not None and place.way.become_nobody else None
            with _fixed_addresses():
                self.process = Process(
                    command,
                    env=environment,
                    adopts_orphans=place.way is None,
                    stdin=stdin_fd,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=inherited,
                    cwd=folder,
                    user=user,
                    group=user,
                    extra_groups=None if user is None else [],
                )
            self._stack.callback(self._leave)
            self._ended = os.pidfd_open(self.process.pid)
            self._fds.add(self._ended)
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

    def run(self) -> Ran:
        """Start the code, and collect its output until the code ends or exceeds a limit. Then end the process tree."""
        streams = {self.process.stdout.fileno(): bytearray(), self.process.stderr.fileno(): bytearray()}
        killed: Status | None = None
        began = looked = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"g")
        try:
            with selectors.DefaultSelector() as ready:
                for fd in (*streams, self._report, self._ended):
                    ready.register(fd, selectors.EVENT_READ)
                running = True
                while running and killed is None:
                    for key, _ in ready.select(INTERVAL):
                        if key.fd not in streams:
                            running = False
                        elif not self._read(key.fd, streams[key.fd]):
                            ready.unregister(key.fd)
                        elif len(streams[key.fd]) > self._limits.output_bytes:
                            killed = "output"
                    now = time.monotonic()
                    if now - looked >= INTERVAL and running and killed is None:
                        looked = now
                        killed = self._passed(now - began)
            seconds = time.monotonic() - began
        finally:
            self.end()
        line = os.read(self._report, 64) if killed is None and readable(self._report, 0) else b""
        exit_code = int(line) if line.endswith(b"\n") else None
        for fd, text in streams.items():
            os.set_blocking(fd, False)  # a process may hold it open
            with contextlib.suppress(BlockingIOError):
                while len(text) <= self._limits.output_bytes and self._read(fd, text):
                    pass
            if len(text) > self._limits.output_bytes:
                killed = killed or "output"
                del text[self._limits.output_bytes :]
        output, errors = (text.decode("utf-8", "replace") for text in streams.values())
        if killed is None and exit_code == -signal.SIGXCPU:
            killed = "timeout"
        if killed is not None:
            return Ran(output, errors, killed, None, seconds)
        if exit_code == NO_MEMORY and "MemoryError" in errors:  # code may exit with this number
            return Ran(output, errors, "memory", 1, seconds)
        if exit_code is None:
            errors += "\nended from outside\n"
        elif exit_code < 0:
            errors += f"\nended by {signal_name(-exit_code)}\n"
        return Ran(output, errors, "ok" if exit_code == 0 else "error", exit_code, seconds)

    def end(self) -> None:
        if self._way is None and self.tree is not None and self.process.code is None:
            self.tree.kill_below()  # also outside the group
        gone = True
        if self.tree is not None:
            gone = self.tree.kill_root()
            # bubblewrap reaps its child, then ends. Killed before, it would leave a zombie if hone is process 1 of a
            # container.
            readable(self._ended, GONE_SECONDS)
        self.process.kill()
        self.process.wait()
        if not gone:
            raise OSError("the sandbox's processes don't end")

    def _await(self) -> None:
        ready = readable(self._report, _START_SECONDS) and os.read(self._report, 6) == b"ready\n"
        root = self.process.pid
        if self._status is not None and ready:
            root = json.loads(os.pread(self._status, 4096, 0).partition(b"\n")[0])["child-pid"]
        if not ready:
            self._withdraw()
            os.set_blocking(self.process.stderr.fileno(), False)
            text = (self.process.stderr.read() or b"").decode("utf-8", "replace").strip()
            raise OSError(NOT_STARTED + (text[-1000:] or f"it took more than {_START_SECONDS:.0f} seconds"))
        self.tree = Tree(root)
        with contextlib.suppress(OSError):  # out of memory, the kernel kills this first
            Path(f"/proc/{root}/oom_score_adj").write_text("1000")
        if self._way is not None:
            with contextlib.suppress(OSError):
                self._scratch = os.open(f"/proc/{root}/root/scratch", os.O_PATH | os.O_DIRECTORY)
                self._fds.add(self._scratch)

    def _withdraw(self) -> None:
        """End a starting process by closing the pipe that it waits on. Killing bubblewrap would not end its child."""
        self._drop(self._go)
        self.process.wait(_BACKSTOP_SECONDS)

    def _leave(self) -> None:
        if self.tree is None and self._go in self._fds:  # Ctrl-C came before it was ready
            self._withdraw()
        try:
            self.end()
        finally:
            self.process.stdout.close()
            self.process.stderr.close()
            if self.tree is not None:
                self.tree.close()

    def _passed(self, seconds: float) -> Status | None:
        assert self.tree is not None
        limits, (cpu_seconds, memory_bytes, tasks) = self._limits, self.tree.usage()
        # The kernel limits each process's time; for a single process its limit comes first.
        if cpu_seconds > limits.cpu_seconds + 0.5 or seconds > limits.clock_seconds:
            return "timeout"
        if tasks > limits.processes + OWN_TASKS:
            return "processes"
        if memory_bytes > limits.memory_mib << 20:
            exact = self.tree.memory_bytes()
            if exact is None or exact > limits.memory_mib << 20:
                return "memory"
        if self._scratch is not None:
            files = os.fstatvfs(self._scratch)
            if files.f_files - files.f_ffree > _INODES:
                return "memory"
        return None

    def _read(self, source: int, output: bytearray) -> bool:
        part = os.read(source, 1 << 16)
        output += part[: max(0, self._limits.output_bytes + 1 - len(output))]
        return bool(part)

    def _file(self, content: bytes, sealed: bool = False) -> int:
        """Return a file descriptor of `content` in memory. If `sealed` is true, nobody can change the file."""
        fd = os.memfd_create("hone", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._fds.add(fd)
        with os.fdopen(fd, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        if sealed:
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


class Tree:
    """`root` and the processes that descend from it."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._root: int | None = None
        with contextlib.suppress(ProcessLookupError):
            self._root = os.pidfd_open(root)

    def pids(self) -> list[int]:
        """Return the ids of the current processes, the root's first."""
        found, i = [self.root], 0
        family = None if _KERNEL_KNOWS_CHILDREN else _families()
        while i < len(found):
            if family is not None:
                found += family.get(found[i], [])
            else:
                with contextlib.suppress(OSError):
                    for task in os.listdir(f"/proc/{found[i]}/task"):
                        with open(f"/proc/{found[i]}/task/{task}/children") as file:
                            found += map(int, file.read().split())
            i += 1
        return found

    def usage(self) -> tuple[float, int, int]:
        """Return the processor time so far in seconds, the memory now in bytes, and the number of threads now.

        Processor time includes ended processes that their parent waited for. A memory page that processes
        share since a fork counts for each of the processes; in `memory_bytes` it counts once.
        """
        ticks = kib = tasks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{pid}/stat", "rb") as file:  # bytes: a process may have any name
                    ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
                with open(f"/proc/{pid}/status", "rb") as file:
                    fields = dict(line.split(b":", 1) for line in file)
                kib += sum(int(fields[name].split()[0]) for name in _RESIDENT if name in fields)
                tasks += int(fields[b"Threads"])
        return ticks / _TICK, kib << 10, tasks

    def memory_bytes(self) -> int | None:
        """Return the bytes in use, or None if the kernel denies it. A shared page counts once. Slower than `usage`."""
        kib = 0
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/smaps_rollup") as file:
                    kib += sum(int(line.split()[1]) for line in file if line.startswith(_PROPORTIONAL))
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
            except OSError:
                return None
        return kib << 10

    def kill_below(self) -> None:
        """Kill all processes except the root, which must stay to reap orphans."""
        deadline = time.monotonic() + GONE_SECONDS
        while (others := self.pids()[1:]) and time.monotonic() < deadline:
            for pid in others:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)

    def kill_root(self) -> bool:
        """Kill the root; if it is process 1 of a namespace, the others end first. Return False if it takes too long."""
        if self._root is None:
            return True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._root, signal.SIGKILL)
        return readable(self._root, GONE_SECONDS)

    def close(self) -> None:
        if self._root is not None:
            os.close(self._root)
            self._root = None


@contextlib.contextmanager
def _fixed_addresses() -> Iterator[None]:
    """Start the block's processes without address randomisation, so that `print(object())` repeats its output."""
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
    """Return the interpreter's arguments. All numbers have one length, so that memory addresses repeat."""
    words = [f"{key}={value:016d}" for key, value in given.items()]
    return ["-P", "-s", "-S", "-B", "-X", "utf8", "-c", _SOURCE, scratch, name, packages, *words]


def _most_tasks(way: Way | None, uid: int, processes: int) -> int:
    """Return RLIMIT_NPROC. The kernel counts all of the user's tasks; since Linux 5.14 only tasks in the namespace."""
    if way is None:
        others = _tasks_of(uid)
    elif not way.user_namespace:
        others = _tasks_of(uid) if uid == bubblewrap.NOBODY else 0
    else:
        apart = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2]) >= (5, 14)
        others = 0 if apart else _tasks_of(bubblewrap.NOBODY if way.become_nobody else os.geteuid())
    return processes + OWN_TASKS + others


def _tasks_of(uid: int) -> int:
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid == uid:
                total += len(os.listdir(f"/proc/{pid}/task"))
    return total


def _families() -> dict[int, list[int]]:
    families: dict[int, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            families.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(pid))
    return families
