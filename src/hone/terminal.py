"""Prints text from files, models and servers so that the text can't control the terminal.

Commands run in `safe_output`, which prints through `printable`. Status lines and rich tables go to `raw`.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

DRAWING = {"tqdm", "click", "wandb", "trackio", "ray"}
"""Libraries that draw progress bars and colours: their output is not escaped."""


class _Escapes(dict[int, int | str]):
    def __missing__(self, code: int) -> int | str:
        char = chr(code)
        shown = char.isprintable() or char in "\n\t"
        return self.setdefault(code, code if shown else _escaped(char))


def _escaped(char: str) -> str:
    """Return a character's escape: Python's for ASCII controls, else JSON's, so that JSON text keeps its value."""
    if char < " ":
        return char.encode("unicode_escape").decode()
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


_ESCAPES = _Escapes()


def printable(text: str) -> str:
    """Escape what can control a terminal or hide in a line, such as control characters and direction marks."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def hanging(text: str) -> str:
    """Return `text` with all lines but the first indented, so that they don't look like hone's lines."""
    return re.sub(r"\n(?! )", "\n  ", text)


class SafeStream:
    """A text stream that escapes what could control a terminal, and delegates to the stream `raw`."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream

    def write(self, text: str) -> int:
        caller = sys._getframe().f_back
        library = caller and str(caller.f_globals.get("__name__")).partition(".")[0]
        self.raw.write(text if library in DRAWING else printable(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw(stream: TextIO) -> TextIO:
    return stream.raw if isinstance(stream, SafeStream) else stream


def safe(stream: TextIO) -> TextIO:
    return stream if isinstance(stream, SafeStream) else SafeStream(stream)  # type: ignore[return-value]


@contextmanager
def safe_output() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (stream and safe(stream) for stream in before)  # None where there is none
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_console(file: TextIO | None = None, **options: Any) -> Console:
    """Make a rich console, by default on standard output, that escapes the text it gets."""
    return _console_class()(file=raw(file or sys.stdout), **options)


@functools.cache
def _console_class() -> type[Console]:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    return SafeConsole
