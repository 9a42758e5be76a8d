"""One line that tells what is being done now, for work whose parts are of unlike length."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

from hone.grading import printable


class Status:
    """Call it with what is being done; `clear` before printing anything else. `stream`: by default standard output."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._last_line = time.monotonic()

    def __call__(self, text: str) -> None:
        text = printable(" ".join(text.splitlines()))
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            print(f"\r\033[K{text[: columns - 1]}", end="", flush=True, file=self._stream)
        elif time.monotonic() - self._last_line > 10:  # lines can't be written one over another
            self._last_line = time.monotonic()
            print(text, flush=True, file=self._stream)

    def clear(self) -> None:
        """Take the line off the terminal."""
        if self._terminal:
            print("\r\033[K", end="", flush=True, file=self._stream)
