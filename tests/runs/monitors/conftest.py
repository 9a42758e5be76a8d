"""A disk that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest


@pytest.fixture
def small_disk() -> Callable[[Path, str], AbstractContextManager[None]]:
    """Makes a folder a file system of its own, of that size (`64k`), while the block lasts. Needs root."""

    @contextmanager
    def mounted(folder: Path, size: str) -> Iterator[None]:
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be mounted here: {error}")
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)

    return mounted
