"""Preflight work that may take long says how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def slow_work(what: str, total: int, display: str) -> Iterator[Callable[[int], None]]:
    """Shows how far work has got, if it takes longer than 2 s: a bar on a terminal, else a line every 2 s.

    Yields a function to be called with the number of items done.
    """
    began = shown = time.monotonic()
    if display == "auto" and sys.stdout.isatty():
        from rich.progress import Progress as Bar

        with Bar(transient=True) as bar:
            task = bar.add_task(what, total=total, visible=False)
            yield lambda done: bar.update(task, completed=done, visible=time.monotonic() - began > 2)
        return

    def advance(done: int) -> None:
        nonlocal shown
        if display != "none" and time.monotonic() - shown > 2:
            shown = time.monotonic()
            print(f"{what}: {done:,} of {total:,}", flush=True)

    yield advance
