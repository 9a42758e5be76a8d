"""Are the files of a run still as they were written? Checked when the run ends; a resume checks more (`runs/drift.py`).

A file whose inode, size and times have not changed is not read again, so that 1,000 steps take some milliseconds at the
end; another one is read and hashed. What changed while no process wrote the run is for `hone verify` to find.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hone.runs.evaluations import evals_file
from hone.runs.files import MARKER, read_lines, sha256
from hone.runs.outputs import TOKENS
from hone.runs.rollouts import rollouts_file

LOGS = ("metrics.jsonl", "hashes.jsonl")
"""Logs that are the same in every run of a config."""
RUN = "run.json"
_SPARE = (TOKENS, "checkpoints", "weights")
"""Folders that may be emptied to make room: no step needs them to be executed again."""
_MISSING, _CHANGED = "is missing", "has changed since it was written"


@dataclass(frozen=True)
class FileChange:
    """A file of the run, relative to it, that is not as it was written, and the step that it is of.

    `counts`: the record of the run lacks it, so that the run is not exact. `more` other files of the folder are, too.
    """

    step: int
    file: str
    problem: str
    counts: bool = True
    more: int = 0

    def __str__(self) -> str:
        others = f", and {self.more} more of {Path(self.file).parts[0]}/" if self.more else ""
        return f"{self.file} {self.problem}{others}"

    @property
    def warning(self) -> str:
        """For people: what it is, and what it means."""
        meaning = f": the record of the run is incomplete from step {self.step} on" if self.counts else ""
        return f"Warning: {self}{meaning}."


class Written:
    """The files that this process wrote into the run in `folder`. Several threads may add files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, tuple[int, tuple[int, ...], str]] = {}
        self._lines: dict[str, list[tuple[int, str]]] = {name: [] for name in LOGS}

    def adopt(self) -> None:
        """Takes over the files of earlier processes, with their hashes in hashes.jsonl."""
        for name in LOGS:
            self._lines[name] = _digests(self._folder / name)
        for line in read_lines(self._folder / "hashes.jsonl"):
            files = {rollouts_file(line["step"]): line.get("rollouts"), evals_file(line["step"]): line.get("evals")}
            for name, digest in files.items():
                if digest is not None and (self._folder / name).exists():
                    self.add(line["step"], name, digest)
        for name in (RUN, "config.toml"):
            self.add(0, name, sha256(self._folder / name))

    def add(self, step: int, name: str, digest: str) -> None:
        """Takes note of a file that was written whole, with its SHA-256."""
        self._files[name] = step, _state(self._folder / name), digest

    def add_folder(self, step: int, name: str) -> None:
        """Takes note of a folder that `new_dir` made."""
        with contextlib.suppress(OSError):
            for file, facts in json.loads((self._folder / name / MARKER).read_text())["files"].items():
                self.add(step, f"{name}/{file}", facts["sha256"])

    def drop_folders(self, *names: str) -> None:
        """Forgets folders, which are about to be deleted."""
        for file in [file for file in list(self._files) if file.startswith(tuple(f"{name}/" for name in names))]:
            self._files.pop(file, None)

    def add_line(self, log: str, step: int, line: bytes) -> None:
        """Takes note of a line that was appended to one of `LOGS`."""
        self._lines[log].append((step, hashlib.sha256(line).hexdigest()))

    def changes(self) -> list[FileChange]:
        """The files that are not as they were written, ascending by step."""
        found = [change for name in LOGS if (change := self._changed_log(name)) is not None]
        for name, (step, state, digest) in list(self._files.items()):
            problem = _problem(self._folder / name, state, digest)
            spare = problem == _MISSING and name.startswith(_SPARE)
            if problem:
                found.append(FileChange(step, name, problem, counts=not spare and name != RUN))
        return _grouped(found)

    def _changed_log(self, name: str) -> FileChange | None:
        """The first step whose line is not where it was written."""
        if not (self._folder / name).exists():
            return FileChange(min((step for step, _ in self._lines[name]), default=0), name, _MISSING)
        lines, found = self._lines[name], [digest for _, digest in _digests(self._folder / name)]
        for index, (step, digest) in enumerate(lines):
            if found[index : index + 1] != [digest]:
                return FileChange(step, name, _CHANGED)
        return FileChange(lines[-1][0] if lines else 0, name, _CHANGED) if len(found) > len(lines) else None


def _problem(path: Path, state: tuple[int, ...], digest: str) -> str:
    try:
        return "" if _state(path) == state != () or sha256(path) == digest else _CHANGED
    except (FileNotFoundError, NotADirectoryError):
        return _MISSING
    except OSError as error:
        return f"can't be read ({error.strerror})"


def _state(path: Path) -> tuple[int, ...]:
    """What changes with a file's content, for its time of change cannot be set back; empty if there is no such file."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _digests(path: Path) -> list[tuple[int, str]]:
    """(step, SHA-256) of each line of a log; the step of one that is no record is -1."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [(_step(line), hashlib.sha256(line).hexdigest()) for line in lines]


def _step(line: bytes) -> int:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return -1


def _grouped(changes: list[FileChange]) -> list[FileChange]:
    """One for each folder and way, the first step's, which counts the others."""
    groups: dict[Any, list[FileChange]] = {}
    for change in sorted(changes, key=lambda change: (change.step, change.file)):
        groups.setdefault((Path(change.file).parts[0], change.problem), []).append(change)
    return [replace(group[0], more=len(group) - 1) for group in groups.values()]
