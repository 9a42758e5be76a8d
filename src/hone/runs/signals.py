"""Reasons for an early end: signals, and failures of the machine (a full disk, an I/O error, no memory).

After the first signal the step is finished and saved; a second Ctrl-C stops at once. Schedulers and spot machines send
SIGTERM a moment before they kill the process. If a step would exceed this grace period, the step is abandoned, and the
state before the step is saved.
"""

from __future__ import annotations

import errno
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hone.runs.files import NEW_PREFIX, error_number

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
_DISK = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("the disk quota is used up", "free some space"),
    errno.EIO: ("the disk reports an I/O error", "check the disk"),
    errno.EROFS: ("the file system is read-only", "make it writable"),
    errno.EACCES: ("writing is not permitted", "make the folder writable"),
    errno.EPERM: ("writing is not permitted", "make the folder writable"),
    errno.ESTALE: ("the network file system has lost the file", "mount it again"),
    errno.ENOENT: ("a file or folder of the run was removed", "start the run again, and leave its folder alone"),
}
_NO_MEMORY = "lower --trainer.micro-batch-tokens (rl) or --data.micro-batch-tokens (sft), or the batch size"


class StepAbandoned(KeyboardInterrupt):
    """Raised if a step can't be finished in the grace period. A KeyboardInterrupt, so that no grader catches it."""


class StopRequest:
    """A context: SIGINT, SIGTERM and SIGHUP only set `signum`. The loop reads `signum` after its step.

    SIGHUP counts as SIGTERM, unless it was ignored before (`nohup`). The signal handler passes `say` a line about what
    will happen. A SIGINT after the first signal raises KeyboardInterrupt. When `grace_seconds` minus `save_seconds`
    have passed since the first SIGTERM, StepAbandoned is raised, inside `abandonable` or by `check`. Outside the main
    thread the context does nothing, because signals can't be caught there.
    """

    def __init__(self, say: Callable[[str], None], grace_seconds: float = 25.0):
        self.signum: int | None = None
        self.grace_seconds = grace_seconds
        self.save_seconds = 1.0
        self._say = say
        self._before: dict[int, Any] = {}
        self._abandonable = False
        self._deadline = math.inf

    def __bool__(self) -> bool:
        return self.signum is not None

    @property
    def exit_code(self) -> int:
        """A shell's exit code for a process that `signum` ended, such as 130 or 143; 0 without a signal."""
        return 0 if self.signum is None else 128 + self.signum

    @property
    def time_left(self) -> bool:
        return time.monotonic() < self._deadline

    @contextmanager
    def abandonable(self) -> Iterator[None]:
        """Allow StepAbandoned at any point of the block. The block must not change anything that is saved."""
        self._abandonable = True
        try:
            self.check()
            yield
        finally:
            self._abandonable = False

    def release(self) -> None:
        """Let Ctrl-C end the remaining waits at once, because everything is saved."""
        if self._before:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        if not self.time_left:
            raise StepAbandoned

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for signum in _NAMES:
                if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._handle)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._time_is_up)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        is_ctrl_c = signum == signal.SIGINT
        if not is_ctrl_c and self._deadline == math.inf:
            # The timer interrupts a wait. `check` compares with the deadline: a grader may use the timer, too.
            left = max(self.grace_seconds - self.save_seconds, 0.05)  # the least that a step gets
            self._deadline = time.monotonic() + left
            signal.setitimer(signal.ITIMER_REAL, left)
        if self.signum is None:
            self.signum = signum
            in_time = f"within {self.grace_seconds:g} s, else the step is given up"
            limit = "press Ctrl-C again to stop at once" if is_ctrl_c else in_time
            self._say(f"{_NAMES[signal.Signals(signum)]}: finishing this step and saving a checkpoint; {limit}")
        elif is_ctrl_c:
            raise KeyboardInterrupt

    def _time_is_up(self, _signum: int, _frame: FrameType | None) -> None:
        if self._abandonable:
            raise StepAbandoned


def explain(error: BaseException, folder: Path) -> tuple[str, str] | None:
    """Return (cause, remedy) if the machine caused `error`; None for a possible bug, or an error about a user's file.

    An error about a file counts only if the file is below `folder`, or if the error names no file.
    """
    if is_out_of_memory(error):
        return "out of memory", _NO_MEMORY
    if (number := error_number(error)) not in _DISK:
        return None
    names = (error.filename, error.filename2) if isinstance(error, OSError) else ()
    files = [Path(str(name)) for name in names if name is not None]
    inside = [file for file in files if folder.resolve() in file.resolve().parents]
    if not inside and (files or number == errno.ENOENT):
        return None
    cause, remedy = _DISK[number]
    return f"{cause} ({_final_name(inside[0]) if inside else folder})", remedy


def disk_sentence(error: OSError) -> str | None:
    """Return a sentence on a problem of disk or permissions, with the remedy; None if it may be a bug."""
    if error.errno not in _DISK or error.errno == errno.ENOENT:
        return None
    cause, remedy = _DISK[error.errno]
    if error.errno in (errno.EACCES, errno.EPERM):
        cause, remedy = "it is not permitted to read or write", "change its permissions"
    return f"{cause}{'' if error.filename is None else f' ({_final_name(error.filename)})'}: {remedy}"


def _final_name(file: Any) -> str:
    return str(file).replace(NEW_PREFIX, "")


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for out-of-memory errors of Python, the system and PyTorch (on a CPU a plain RuntimeError)."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    named = type(error).__name__ == "OutOfMemoryError"  # torch.OutOfMemoryError, without importing torch
    return named or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
