"""Stopping a run politely: the first signal lets the step finish and be saved, a second Ctrl-C stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


def _to_stderr(text: str) -> None:
    # os.write, for a signal handler may interrupt a buffered write and must not enter it again.
    os.write(2, f"\n{text}\n".encode())


class StopRequest:
    """While entered, SIGINT and SIGTERM only set `signum`, for the loop to see at the end of its step.

    `say` gets the one line that tells what will happen; it is called inside the signal handler. A second SIGINT raises
    KeyboardInterrupt at once. Outside the main thread signals can't be caught, and nothing is changed.
    """

    def __init__(self, say: Callable[[str], None] = _to_stderr):
        self.signum: int | None = None
        self._say = say
        self._before: dict[int, Any] = {}

    def __bool__(self) -> bool:
        """True once a stop was asked for."""
        return self.signum is not None

    @property
    def exit_code(self) -> int:
        """What a shell reports for a process ended by that signal: 130 or 143; 0 if none came."""
        return 0 if self.signum is None else 128 + self.signum

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for signum in _NAMES:
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before.clear()

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if self.signum is not None:
            if signum == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.signum = signum
        name = _NAMES[signal.Signals(signum)]
        self._say(f"{name}: finishing this step and saving a checkpoint; press Ctrl-C again to stop at once")
