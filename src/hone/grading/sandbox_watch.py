"""Watching a tree of processes from outside: what it writes, what it uses, and its end.

The kernel's limits hold for one process; a tree's processor time, memory and number are added up here, at short
intervals, from /proc.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hone.grading.pool import readable

Reason = Literal["timeout", "memory", "output", "processes"]
INTERVAL = 0.05
"""Seconds between two looks at what a tree uses."""
GONE_SECONDS = 10.0
"""How long the kernel is given to end a killed tree."""
_TICK = os.sysconf("SC_CLK_TCK")
_RESIDENT = (b"RssAnon", b"RssShmem", b"VmSwap")
_PROPORTIONAL = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")
_KERNEL_KNOWS_CHILDREN = os.path.exists(f"/proc/self/task/{threading.get_native_id()}/children")
"""Built in by all large distributions (CONFIG_PROC_CHILDREN), not by every kernel."""


@dataclass(frozen=True)
class Usage:
    """What a tree uses: seconds of processor time so far, bytes of memory now, processes and threads now."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    tasks: int = 0


@dataclass(frozen=True)
class Bounds:
    """What a tree may use in all, in seconds, bytes and numbers; `inodes` of its scratch folder."""

    cpu_seconds: float
    clock_seconds: float
    memory_bytes: int
    tasks: int
    output_bytes: int
    inodes: int


@dataclass
class Watched:
    """What came of it: both outputs, the seconds it took, and why it was killed, if it was."""

    output: bytearray = field(default_factory=bytearray)
    errors: bytearray = field(default_factory=bytearray)
    seconds: float = 0.0
    killed: Reason | None = None
    exit_code: int | None = None
    """As of `subprocess`; None where it is unknown."""


class Tree:
    """The processes that descend from `root`, and it."""

    def __init__(self, root: int) -> None:
        self.root = root
        try:
            self._root: int | None = os.pidfd_open(root)
        except ProcessLookupError:
            self._root = None

    def pids(self) -> list[int]:
        """Return those that are there now, from the root down."""
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

    def usage(self) -> Usage:
        """Processor time includes that of processes which ended and were waited for. A page that processes share since
        a fork counts for each of them (see `memory_bytes`).
        """
        ticks = kib = tasks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError, IndexError):
                with open(f"/proc/{pid}/stat", "rb") as file:  # bytes: a process gives itself any name it likes
                    ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:15]))
                with open(f"/proc/{pid}/status", "rb") as file:
                    fields = dict(line.split(b":", 1) for line in file)
                kib += sum(int(fields[name].split()[0]) for name in _RESIDENT if name in fields)
                tasks += int(fields[b"Threads"])
        return Usage(ticks / _TICK, kib << 10, tasks)

    def memory_bytes(self) -> int | None:
        """Memory in use, each shared page once; slower. None where the kernel doesn't tell this user."""
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
        """End all but the root, which must be there to take care of those that lose their parent."""
        deadline = time.monotonic() + GONE_SECONDS
        while (others := self.pids()[1:]) and time.monotonic() < deadline:
            for pid in others:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)

    def kill_root(self) -> None:
        """Tell the root to end; if it is the first of a namespace of processes, all in that end with it."""
        if self._root is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._root, signal.SIGKILL)

    def wait(self, seconds: float = GONE_SECONDS) -> bool:
        """Return True if the root ended within these seconds; a namespace's first process ends last of all in it."""
        return self._root is None or readable(self._root, seconds)

    def close(self) -> None:
        """Let go of the root."""
        if self._root is not None:
            os.close(self._root)
            self._root = None


class Watchable(Protocol):
    """A process that is about to begin, a file that can be read once it has ended, its tree, an open folder of the
    tree's own file system, if it has one, and a pipe that gets the exit code in one line.
    """

    process: subprocess.Popen[bytes]
    ended: int
    tree: Tree | None
    scratch: int | None
    report: int

    def go(self) -> None:
        """Let it begin."""
        ...

    def end(self) -> None:
        """End the whole tree."""
        ...


def watch(started: Watchable, bounds: Bounds) -> Watched:
    """Let the process go and collect its outputs until it ends or passes one of the bounds; then end its tree."""
    process = started.process
    assert process.stdout is not None and process.stderr is not None
    seen = Watched()
    began = looked = time.monotonic()
    started.go()
    try:
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ, seen.output)
            ready.register(process.stderr, selectors.EVENT_READ, seen.errors)
            ready.register(started.report, selectors.EVENT_READ)
            ready.register(started.ended, selectors.EVENT_READ)
            running = True
            while running and seen.killed is None:
                for key, _ in ready.select(INTERVAL):
                    if key.fd in (started.report, started.ended):
                        running = False
                    elif not _read(key.fd, key.data, bounds.output_bytes):
                        ready.unregister(key.fileobj)
                    elif len(key.data) > bounds.output_bytes:
                        seen.killed = "output"
                now = time.monotonic()
                if now - looked >= INTERVAL and running and seen.killed is None:
                    looked = now
                    seen.killed = _passed(started, now - began, bounds)
        seen.seconds = time.monotonic() - began
    finally:
        started.end()
    if seen.killed is None:
        seen.exit_code = _number(started.report)
    for pipe, kept in ((process.stdout, seen.output), (process.stderr, seen.errors)):
        os.set_blocking(pipe.fileno(), False)  # someone may have got away with it, and hold it open
        with contextlib.suppress(BlockingIOError):
            while len(kept) <= bounds.output_bytes and _read(pipe.fileno(), kept, bounds.output_bytes):
                pass
        if len(kept) > bounds.output_bytes:
            seen.killed = seen.killed or "output"
            del kept[bounds.output_bytes :]
    return seen


def _families() -> dict[int, list[int]]:
    """Return the children of each process of the machine, from every process's parent."""
    families: dict[int, list[int]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            families.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(pid))
    return families


def _read(source: int, kept: bytearray, limit: int) -> bool:
    """Add what is there, as long as it is wanted, to `kept`. Return False at the end."""
    part = os.read(source, 1 << 16)
    kept += part[: max(0, limit + 1 - len(kept))]
    return bool(part)


def _passed(started: Watchable, seconds: float, bounds: Bounds) -> Reason | None:
    """Which of the bounds is passed, if any."""
    tree = started.tree
    assert tree is not None
    usage = tree.usage()
    if usage.cpu_seconds > bounds.cpu_seconds or seconds > bounds.clock_seconds:
        return "timeout"
    if usage.tasks > bounds.tasks:
        return "processes"
    if usage.memory_bytes > bounds.memory_bytes:
        exact = tree.memory_bytes()
        if exact is None or exact > bounds.memory_bytes:
            return "memory"
    if started.scratch is not None:
        files = os.fstatvfs(started.scratch)
        if files.f_files - files.f_ffree > bounds.inodes:
            return "memory"
    return None


def _number(report: int) -> int | None:
    """Return the number that stands in the pipe, as a line of its own."""
    line = os.read(report, 64) if readable(report, 0) else b""
    return int(line) if line.endswith(b"\n") else None
