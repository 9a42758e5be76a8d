"""A disk of its own for a run: a tmpfs of a chosen size, in a mount namespace that ends with its process."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trials
from traps import Trap

_NEWNS, _NEWUSER = 0x20000, 0x10000000
_READ_ONLY, _REMOUNT, _RECURSIVE, _PRIVATE = 1, 32, 1 << 14, 1 << 18


class Disk:
    """A mounted tmpfs at `folder`, which only the trials that are run on it see."""

    def __init__(self, connection, folder: Path) -> None:
        self._connection = connection
        self.folder = folder

    def run(self, argv: list[str], log: Path, *traps: Trap) -> int:
        """`trials.run` on this disk; `log` lies elsewhere."""
        return self._ask("run", argv, str(log), traps)

    def remount(self, size: str, read_only: bool = False) -> None:
        """Give it another size (such as 300k), or make it read-only."""
        self._ask("remount", size, read_only)

    def copy(self, name: str, target: Path) -> Path:
        """Copy the directory `name` of this disk to `target`, where the test sees it."""
        self._ask("copy", str(self.folder / name), str(target))
        return target

    def _ask(self, *request):
        self._connection.send(request)
        answer = self._connection.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


@contextmanager
def disk(folder: Path, size: str) -> Iterator[Disk]:
    """Mount a tmpfs of `size` at `folder`. PermissionError where this system permits none."""
    folder.mkdir(parents=True, exist_ok=True)
    here, there = trials.context.Pipe()
    process = trials.context.Process(target=_host, args=(there, folder, size))
    process.start()
    try:
        answer = here.recv()
        if isinstance(answer, BaseException):
            raise answer
        yield Disk(here, folder)
    finally:
        process.kill()
        process.join()


def _host(connection, folder: Path, size: str) -> None:
    try:
        _own_namespace()
        _mount(b"tmpfs", folder, b"tmpfs", 0, f"size={size}")
        connection.send(None)
    except OSError as error:
        connection.send(PermissionError(error.errno, f"no mount namespace: {error.strerror}"))
        return
    while True:
        what, *args = connection.recv()
        try:
            connection.send(globals()[f"_{what}"](folder, *args))
        except OSError as error:
            connection.send(error)


def _run(_folder: Path, argv: list[str], log: str, traps: tuple[Trap, ...]) -> int:
    pid = os.fork()
    if not pid:
        try:
            trials.trial(argv, log, traps, None)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _remount(folder: Path, size: str, read_only: bool) -> None:
    _mount(b"tmpfs", folder, b"tmpfs", _REMOUNT | (_READ_ONLY if read_only else 0), f"size={size}")


def _copy(_folder: Path, source: str, target: str) -> None:
    shutil.copytree(source, target)


def _own_namespace() -> None:
    """Leave the mounts of the system, as root or as the root of a user namespace of one's own."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEWNS):
        if libc.unshare(_NEWNS | _NEWUSER):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _mount(None, Path("/"), None, _RECURSIVE | _PRIVATE, None)


def _mount(source: bytes | None, target: Path, kind: bytes | None, flags: int, options: str | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    data = options.encode() if options else None
    if libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), data):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
