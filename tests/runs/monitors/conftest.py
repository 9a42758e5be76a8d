"""Patience with clients that load for long, and a disk that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from hone.runs.monitors import background


@pytest.fixture(autouse=True)
def _patient_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is slow to load, as on a busy machine, is no failure of it. Tests of the deadline set their own."""
    monkeypatch.setattr(background, "FINISH_SECONDS", 300.0)


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
