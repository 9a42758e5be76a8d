"""Files that other processes wait for, maybe on other machines: they appear whole, by a rename, and nobody locks.

On NFS a rename may be seen late, a removed file may be seen for a while, and what is there may be torn after a crash of
the server. So a reader lists the folder before it opens a file in it (which asks the server anew), takes any error of
the system for "not yet", and gives what is damaged some seconds to become whole.

Nothing is flushed to the disk: a folder like this lives as long as the processes, and a run goes on from checkpoints.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hone.errors import UserError
from hone.runs.files import NEW_PREFIX, TMP_PREFIX

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds that a damaged file gets to become whole."""
SHORTEST, LONGEST, SHARE = 0.001, 0.05, 0.02
"""Seconds between two looks: this share of the time waited so far, between shortest and longest. So a look too late
costs little of the wait, and looking costs little of a processor.
"""


def write(path: Path, data: bytes) -> None:
    """`path` with this content, whole or not at all, in a folder that exists. On a full disk nothing is left of it."""
    temporary = path.with_name(f"{NEW_PREFIX}{path.name}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def names(folder: Path) -> list[str]:
    """Names in a folder, those of files that are still being written left out; empty if it isn't there (yet)."""
    try:
        return [name for name in os.listdir(folder) if not name.startswith(TMP_PREFIX)]
    except OSError:
        return []


def remove(path: Path) -> None:
    """Removes a file, or a folder with all that is in it; what can't be removed (yet) stays."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


class Reader:
    """Reads files that others write, and remembers since when one is damaged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._damaged: dict[Path, float] = {}
        self._clock = clock

    def read(self, path: Path, parse: Callable[[Path], T]) -> T | None:
        """What `parse` makes of a file; None if it isn't there yet, or not whole yet (ValueError).

        UserError if it has been damaged for too long.
        """
        if path.name not in names(path.parent):
            self._damaged.pop(path, None)
            return None
        try:
            value = parse(path)
        except OSError:  # removed meanwhile, or the server's handle of it is stale
            return None
        except ValueError as error:
            since = self._damaged.setdefault(path, self._clock())
            if self._clock() - since > PATIENCE:
                raise UserError(
                    f"{path} is damaged ({error}): check the file system, then start the run's processes again"
                ) from None
            return None
        self._damaged.pop(path, None)
        return value


def poll(look: Callable[[], T | None], interrupt: Callable[[], None], timeout: float | None = None) -> T | None:
    """What `look()` finds, asked again and again; None if it is nothing after `timeout` seconds (None: for ever).

    `interrupt` is called before each look, and may raise.
    """
    began = time.monotonic()
    while True:
        interrupt()
        if (found := look()) is not None:
            return found
        waited = time.monotonic() - began
        pause = min(max(SHARE * waited, SHORTEST), LONGEST)
        if timeout is not None:
            if waited >= timeout:
                return None
            pause = min(pause, timeout - waited)
        time.sleep(pause)
