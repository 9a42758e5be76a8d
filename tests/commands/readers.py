"""Readers of what a command prints."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def nobody_reads() -> Iterator[None]:
    """In the block, standard output is a pipe whose reader has left."""
    reads, writes = os.pipe()
    os.close(reads)
    with open(writes, "w", encoding="utf-8") as stream:
        with redirect_stdout(stream):
            yield
        os.dup2(os.open(os.devnull, os.O_WRONLY), writes)  # for what it still holds
