"""Standing between a process and its disk: counts what it does to one folder, and lets a chosen operation go wrong.

An operation is known by its kind, its path within the folder, and the how-manieth of these it is: unlike its place in
the whole sequence, that does not depend on which thread is ahead. Kinds: open (for writing), write, fsync, rename
(known by its target), mkdir, remove, rmdir, truncate, chmod; save is a file that safetensors writes by itself.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import pkgutil
import resource
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple


class Op(NamedTuple):
    """One operation on the disk: the `count`-th of its kind on this path (relative to the folder)."""

    kind: str
    path: str
    count: int


@dataclass(frozen=True)
class At:
    """The `count`-th operation of a kind on paths that match `path` (fnmatch).

    `when`: before it, after it, or half (of the bytes are written; for other kinds it is the same as before).
    """

    kind: str
    path: str
    count: int = 1
    when: str = "before"


@dataclass(frozen=True)
class Call:
    """The `count`-th call of `name`, a function or method by its dotted path: before it, or after its work."""

    name: str
    count: int = 1
    when: str = "before"


@dataclass(frozen=True)
class Trap:
    """What happens there: `kill` (SIGKILL: no handler, no clean-up, no flush), `memory` (the process gets not one
    page more from then on), or an error name such as ENOSPC, which the operation fails with.

    With `lasting` every operation after it that needs space (or any at all, if the error is not ENOSPC) fails as well.
    """

    where: At | Call
    action: str = "kill"
    lasting: bool = False


_truncate = os.truncate
_SPACE = frozenset({"open", "write", "mkdir", "save", "rename"})
"""Kinds that a full disk refuses."""


class Traps:
    """The traps of one process, and the record of what it did. `spring` is called before, half through, after each."""

    def __init__(self, folder: Path, traps: tuple[Trap, ...]):
        self._folder = os.path.realpath(folder)
        self._traps = [trap for trap in traps if isinstance(trap.where, At)]
        self._matches: Counter[Trap] = Counter()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._lasting: Trap | None = None
        self._lock = threading.Lock()
        self.torn: dict[int, Trap] = {}
        """Descriptors whose last write was cut short, with what the next one meets."""
        self.ops: list[Op] = []

    def enter(self, kind: str, path: str | int) -> Trap | None:
        """Record an operation that is about to happen. Returns the trap that it walks into, if any."""
        name = self._inside(path)
        if name is None:
            return None
        with self._lock:
            self._counts[kind, name] += 1
            self.ops.append(Op(kind, name, self._counts[kind, name]))
            if self._lasting and (self._lasting.action != "ENOSPC" or kind in _SPACE):
                return Trap(At(kind, name), self._lasting.action)
            for trap in self._traps:
                assert isinstance(trap.where, At)
                if kind == trap.where.kind and fnmatchcase(name, trap.where.path):
                    self._matches[trap] += 1
                    if self._matches[trap] == trap.where.count:
                        self._lasting = trap if trap.lasting else None
                        return trap
        return None

    def _inside(self, path: str | int) -> str | None:
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        path = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
        if path == self._folder:
            return "."
        return path[len(self._folder) + 1 :] if path.startswith(self._folder + "/") else None


def spring(trap: Trap, path: str | int) -> None:
    """Let it happen. Raises OSError for an error's name."""
    if trap.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif trap.action == "memory":
        exhaust_memory()
    else:
        number = getattr(errno, trap.action)
        # The system does not say which file a descriptor was: no name then.
        raise OSError(number, os.strerror(number), *([] if isinstance(path, int) else [path]))


_HELD: list[bytearray] = []


def exhaust_memory() -> None:
    """Set the limit of the address space to what is in use now, and take what is free of that."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
    with suppress(MemoryError):
        while True:
            _HELD.append(bytearray(2**16))


def arm(folder: Path, traps: tuple[Trap, ...]) -> Traps:
    """Stand between this process and `folder`, for good."""
    armed = Traps(folder, traps)
    _wrap_os(armed)
    _wrap_open(armed)
    _wrap_safetensors(armed)
    for trap in traps:
        if isinstance(trap.where, Call):
            _wrap_call(trap, trap.where)
    return armed


def _around(armed: Traps, kind: str, path: str | int, work: Callable[[], Any], half: Callable[[], Any] | None = None):
    trap = armed.enter(kind, path)
    if trap is None:
        return work()
    when = trap.where.when
    if when == "after":
        result = work()
        spring(trap, path)
        return result
    if when == "half" and half is not None:
        half()
    spring(trap, path)
    return work()  # it was a signal, or memory


def _wrap_os(armed: Traps) -> None:
    """os.* of one path, of two (known by the second), and of descriptors."""

    def one(name: str, kind: str) -> None:
        real = getattr(os, name)

        def wrapper(path, *args, **kwargs):
            where = path if isinstance(path, int) else os.fspath(path)
            if isinstance(where, bytes) or kwargs.get("dir_fd") is not None:
                where = os.path.join(_of_descriptor(kwargs.get("dir_fd")), os.fsdecode(where))
            return _around(armed, kind, where, lambda: real(path, *args, **kwargs))

        setattr(os, name, wrapper)

    def two(name: str) -> None:
        real = getattr(os, name)

        def wrapper(source, target, **kwargs):
            return _around(armed, "rename", os.fspath(target), lambda: real(source, target, **kwargs))

        setattr(os, name, wrapper)

    kinds = {"fsync": "fsync", "fdatasync": "fsync", "ftruncate": "truncate", "truncate": "truncate", "chmod": "chmod"}
    kinds |= {"mkdir": "mkdir", "rmdir": "rmdir", "unlink": "remove", "remove": "remove"}
    for name, kind in kinds.items():
        one(name, kind)
    two("rename")
    two("replace")
    real_open, real_write, real_send = os.open, os.write, os.sendfile

    def opener(path, flags, *args, **kwargs):
        if not flags & (os.O_WRONLY | os.O_RDWR):
            return real_open(path, flags, *args, **kwargs)
        return _around(armed, "open", os.fspath(path), lambda: real_open(path, flags, *args, **kwargs))

    def write(fd, data):
        return _write(armed, fd, data, lambda part: real_write(fd, part))

    def send(target, *args, **kwargs):  # how shutil copies
        return _around(armed, "write", target, lambda: real_send(target, *args, **kwargs))

    os.open, os.write, os.sendfile = opener, write, send


def _of_descriptor(descriptor: int | None) -> str:
    return "" if descriptor is None else os.readlink(f"/proc/self/fd/{descriptor}")


def _write(armed: Traps, fd: int, data: Any, real: Callable[[Any], Any]) -> Any:
    """A write that meets a full disk takes what fits, says how much, and fails when it is asked again."""
    if fd in armed.torn:
        spring(armed.torn.pop(fd), fd)
    trap = armed.enter("write", fd)
    if trap is None:
        return real(data)
    data = bytes(data)
    if trap.action.startswith("E") and trap.where.when == "half" and len(data) > 1:
        armed.torn[fd] = trap
        return real(data[: len(data) // 2])
    if trap.where.when == "half":
        written = real(data[: len(data) // 2])
        spring(trap, fd)
        return written
    written = real(data) if trap.where.when == "after" else None
    spring(trap, fd)
    return real(data) if written is None else written


class _File(io.FileIO):
    """The descriptor under a file object, so that buffering stays Python's own."""

    armed: Traps

    def write(self, data: Any) -> Any:
        return _write(self.armed, self.fileno(), data, super().write)


def _wrap_open(armed: Traps) -> None:
    real = builtins.open
    spied = type("_File", (_File,), {"armed": armed})

    def opener(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
        if not set(mode) & set("wax+"):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw_mode = mode.replace("t", "").replace("b", "")
        make = lambda: spied(file, raw_mode, closefd, opener)  # noqa: E731
        raw = make() if isinstance(file, int) else _around(armed, "open", os.fspath(file), make)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)

    builtins.open = io.open = opener


def _wrap_safetensors(armed: Traps) -> None:
    import safetensors.torch
    from safetensors import SafetensorError

    serialize = safetensors.torch.serialize_file

    def wrapper(tensors, filename, **kwargs):
        def half() -> None:
            serialize(tensors, filename, **kwargs)
            _truncate(filename, os.stat(filename).st_size // 2)

        try:
            return _around(armed, "save", os.fspath(filename), lambda: serialize(tensors, filename, **kwargs), half)
        except OSError as error:
            text = f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
            raise SafetensorError(text) from None

    safetensors.torch.serialize_file = wrapper


def _wrap_call(trap: Trap, call: Call) -> None:
    holder_name, _, name = call.name.rpartition(".")
    holder = pkgutil.resolve_name(holder_name)
    original = getattr(holder, name)
    calls = 0

    def wrapper(*args, **kwargs):
        nonlocal calls
        calls += 1
        due = calls == call.count
        if due and call.when == "before":
            spring(trap, call.name)
        result = original(*args, **kwargs)
        if due and call.when == "after":
            spring(trap, call.name)
        return result

    setattr(holder, name, wrapper)
