"""Is a run being written, and by which process? Asked of the run's lock, without taking it."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

from hone.runs.outputs import LAUNCHER, LOCK

ELSEWHERE = 0
"""The holder is a process that has no id here: on another machine, or outside this container."""

# struct flock: (type, whence, start, length, pid) on Linux, (start, length, pid, type, whence) on macOS and BSD.
_BSD = sys.platform == "darwin" or "bsd" in sys.platform
_FORMAT = "qqihh" if _BSD else "hhqqi0q"


def holder(folder: Path) -> int | None:
    """Id of the process that writes the run in `folder` now, `ELSEWHERE` if it can't be named; None if there is none.

    Of a run in several processes it is the launcher, if there is one: the signals that end a run are for it.
    Not to be called by that process itself: closing the file would release its own lock.
    """
    launcher = _holder(folder / LAUNCHER)
    return _holder(folder / LOCK) if launcher is None else launcher


def _holder(lock: Path) -> int | None:
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except PermissionError:
        return ELSEWHERE  # another user's run: whether it is written can't be asked
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _whole_file())
    except OSError:
        return None  # a file system without locks: a run there holds none
    finally:
        os.close(descriptor)
    kind, pid = _read(answer)
    return None if kind == fcntl.F_UNLCK else max(pid, ELSEWHERE)


def _whole_file() -> bytes:
    """The question: what would be in the way of an exclusive lock on all of the file?"""
    if _BSD:
        return struct.pack(_FORMAT, 0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return struct.pack(_FORMAT, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _read(answer: bytes) -> tuple[int, int]:
    """(type, pid) of the lock in the way; type `F_UNLCK` if there is none."""
    fields = struct.unpack(_FORMAT, answer)
    return (fields[3], fields[2]) if _BSD else (fields[0], fields[4])
