"""What tells whether a run has changed, so that what was computed of it need not be computed again."""

from __future__ import annotations

import os
from pathlib import Path

from hone.runs.certificates import certificate_path
from hone.runs.evaluations import EVALS
from hone.viewer.card.files import RECORD

Stamps = tuple[tuple[str, int, int], ...]
_FILES = ("run.json", "config.toml", "metrics.jsonl", "events.jsonl", "hashes.jsonl", "results.jsonl", RECORD)
_FOLDERS = ("rollouts", EVALS)


def stamps_of(path: Path) -> Stamps:
    """Name, time of the last change in ns, and bytes of each file that a card, or what is damaged, is made of."""
    files = [*(str(path / name) for name in _FILES), str(certificate_path(path))]
    for name in _FOLDERS:
        files += _steps(path / name)
    return tuple((file, stat.st_mtime_ns, stat.st_size) for file in files if (stat := _stat(file)))


def _steps(folder: Path) -> list[str]:
    """The files of steps, in order. As text: a list of runs asks for thousands, and Paths take twice as long."""
    try:
        return [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.startswith("step_")]
    except OSError:
        return []


def _stat(file: str) -> os.stat_result | None:
    try:
        return os.stat(file)
    except OSError:
        return None
