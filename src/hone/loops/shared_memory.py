"""Folders in memory for weights that a server of this machine loads, and scratch folders of the launcher.

Only this user can open the folders; they are removed after the run. Needs only the standard library, like the launcher.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hone.hardware import ram

ROOT = Path("/dev/shm")
VARIABLE = "HONE_SHARED_MEMORY"
"""Environment variable that tells a run's processes the folder for weights."""
PRESERVED = ".kept"
"""A scratch folder with a file of this name is not removed, because a message names a log in this folder."""
NO_ROOM = "there is no room left in memory"


@contextmanager
def shared_folder(say: Callable[[str], None], root: Path = ROOT) -> Iterator[Path | None]:
    """Yield a new folder in memory that only this user can open (None if none can be made), and remove it afterwards.

    This process locks the folder as long as it lives. Folders of killed processes are removed first.
    """
    prefix = f"hone-{os.geteuid()}-"
    _sweep(root, prefix)
    folder = lock = None
    try:
        folder, lock = _make_locked(root, prefix)
    except OSError as error:
        say(disk_message(f"{root} can't be used ({error.strerror})"))
    try:
        yield folder
    finally:
        if folder is not None and lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


@contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Yield a new private folder among the temporary files. Remove it afterwards, unless it holds `PRESERVED`."""
    root, prefix = Path(tempfile.gettempdir()), f"hone-{kind}-{os.geteuid()}-"
    _sweep(root, prefix)
    folder, lock = _make_locked(root, prefix)
    try:
        yield folder
    finally:
        if not (folder / PRESERVED).exists():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _sweep(root: Path, prefix: str) -> None:
    for left in root.glob(f"{prefix}*"):
        with suppress(OSError):  # its process lives, or it is not ours
            lock = _locked(left)
            if not (left / PRESERVED).exists():
                shutil.rmtree(left, ignore_errors=True)
            os.close(lock)


def _make_locked(root: Path, prefix: str) -> tuple[Path, int]:
    """Return a new folder and its lock. Its name is hidden until it is locked, so that no other run removes it."""
    hidden = Path(tempfile.mkdtemp(prefix=f".{prefix}", dir=root))  # mode 0700, at a name that nobody has taken
    folder = hidden.with_name(hidden.name.removeprefix("."))
    with ExitStack() as failed:
        failed.callback(shutil.rmtree, hidden, ignore_errors=True)
        lock = _locked(hidden)
        failed.callback(os.close, lock)
        hidden.rename(folder)
        failed.pop_all()
    return folder, lock


def join_folder(folder: Path) -> int | None:
    """Make a run's folder on this node and return its lock; None on the launcher's node: the launcher has it."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    try:
        return _locked(folder, fcntl.LOCK_SH)
    except OSError:
        return None


def leave_folder(folder: Path, lock: int) -> None:
    """Release the lock of `join_folder`. The last process to do this removes the folder."""
    with suppress(OSError):  # another process has it, too
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def given_folder() -> Path | None:
    return Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None


def disk_message(reason: str) -> str:
    return f"Weights travel by disk: {reason}"


def shortage(folder: Path, size: int, versions: int) -> str | None:
    """Return a message if `versions` versions, of `size` bytes each, don't fit into `folder`; else None."""
    stats = os.statvfs(folder)
    free, needed = min(stats.f_bavail * stats.f_frsize, ram()[1]), versions * size
    if free >= needed:
        return None
    return disk_message(
        f"{folder.parent} has {_size(free)} free, but {versions} versions of the model need {_size(needed)}"
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _locked(folder: Path, kind: int = fcntl.LOCK_EX) -> int:
    """Open and lock a folder. Raises OSError if other users can open it, or if another process has locked it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(opened)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
            raise PermissionError(errno.EPERM, "other users can open it", str(folder))
        fcntl.flock(opened, kind | fcntl.LOCK_NB)
    except BaseException:
        os.close(opened)
        raise
    return opened
