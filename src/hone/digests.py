"""Digests of a run's sources, so that a resume or a verification notices a change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_SAMPLED = 64


def of_source(path: Path) -> str:
    """Compute SHA-256 of a Python file, or of the names and contents of a folder's Python files."""
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return of_files(sorted(path.rglob("*.py")), path)


def text_sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def of_files(files: Iterable[Path], folder: Path) -> str:
    """Compute SHA-256 over the names (relative to `folder`) and the contents of files, in the order given."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(folder).as_posix()}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def of_rows(rows: Sequence[Any]) -> str:
    """Digest the number of rows and up to 64 evenly spread rows; a change of other rows is not noticed."""
    count = len(rows)
    indices = sorted({i * (count - 1) // max(1, _SAMPLED - 1) for i in range(_SAMPLED)}) if count else []
    from hone.types import content_hash  # loads numpy, which looking at runs does without

    return content_hash([count, [rows[i] for i in indices]])
