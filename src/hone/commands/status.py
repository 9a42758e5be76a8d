"""Output of commands: a status line and tables."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from hone.runs.display import say
from hone.runs.shown import aligned
from hone.terminal import hanging, printable, raw


class Status:
    """A status line on `stream` (default: standard output). Call `clear` before you print anything else."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = raw(stream or sys.stdout)
        self._terminal = self._stream.isatty()
        self._last_line = time.monotonic()

    def __call__(self, text: str) -> None:
        text = printable(" ".join(text.splitlines()))
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            say(f"\r\033[K{text[: columns - 1]}", self._stream, end="")
        elif time.monotonic() - self._last_line > 10:  # a line can't replace the last one
            self._last_line = time.monotonic()
            say(text, self._stream)

    def clear(self) -> None:
        if self._terminal:
            say("\r\033[K", self._stream, end="")


class Ticking:
    """Context manager that shows words and the elapsed seconds in a status line."""

    def __init__(self, status: Status, words: str) -> None:
        self._status, self._words, self._began, self._over = status, words, time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._tick, name="status", daemon=True)

    def __call__(self, words: str) -> None:
        self._words = words

    def __enter__(self) -> Ticking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._status.clear()

    def _tick(self) -> None:
        while not self._over.wait(1.0):
            self._status(f"{self._words} ({time.monotonic() - self._began:.0f} s)")


def print_table(rows: Sequence[Mapping[str, str]]) -> None:
    for line in aligned([{name: str(cell).replace("\n", "\\n") for name, cell in row.items()} for row in rows]):
        print(line)


def print_json(text: str) -> None:
    """Print JSON; escape non-ASCII characters if standard output can't encode the text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = re.sub(r"[^\x00-\x7f]+", lambda found: json.dumps(found[0])[1:-1], text)
    print(text)


def print_labelled(label: str, *texts: object, most: int | None = None) -> None:
    """Print a label, then up to `most` texts, one per line, then the number of texts left out."""
    if most is not None and len(texts) > most:
        texts = (*texts[:most], f"and {len(texts) - most} more")
    for number, text in enumerate(texts):
        say(f"{'' if number else label:<14}{hanging(str(text))}")


def command(*words: str, **flags: Any) -> str:
    """Return a shell command line. One-letter flags get one dash, dicts become JSON, None and {} are left out."""
    line = list(words)
    for name, value in flags.items():
        if value is not None and value != {}:
            written = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
            line += [written, json.dumps(value) if isinstance(value, dict) else str(value)]
    return shlex.join(line)
