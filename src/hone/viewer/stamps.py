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
    files = [*(path / name for name in _FILES), certificate_path(path)]
    files += [file for name in _FOLDERS for file in sorted((path / name).glob("step_*"))]
    return tuple((str(file), stat.st_mtime_ns, stat.st_size) for file in files if (stat := _stat(file)))


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None
