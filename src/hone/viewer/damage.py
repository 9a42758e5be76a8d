"""What of a run's files is not as it was written, as far as that is seen at a glance. `hone verify` reads every byte.

Looked at are the logs, line by line, against hashes.jsonl; that the files of rollouts are there and whole; and the
samples of the first and the last evaluation, which a card compares. Of a run at work nothing is: its files grow.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from hone.errors import UserError
from hone.reproduce.integrity import CLOSED, Checked, Damage, check_records, has_changed
from hone.runs.evaluations import EVALS, evals_file
from hone.runs.files import read_lines
from hone.runs.reader import Run
from hone.runs.summary import Summary

SHOWN = 2
"""Problems of a file, or of the files of a folder, that are told one by one."""
_PARQUET = b"PAR1"


def damages(run: Summary) -> list[str]:
    """What is damaged, a sentence each."""
    lost = run.pid is None and not (run.path / "config.toml").is_file()
    told = ["config.toml: is missing: what was trained, and how, is not known"] if lost else []
    return told + damaged_records(run)


def damaged_records(run: Summary) -> list[str]:
    """The same of logs, rollouts and evaluations."""
    if run.pid is not None:
        return []
    found, log = Checked(), "results.jsonl" if run.kind == "eval" else "metrics.jsonl"
    closed = run.status in CLOSED
    if closed and not (run.path / log).is_file():
        found.add(log, "is missing")
    elif closed and _torn(run.path / log):
        found.add(log, "its last line is torn")
    if (
        run.config and (run.path / log).is_file() and run.kind != "eval" and "sources" in run.info
    ):  # older ones have no hashes of all steps
        one = Run(run.path)
        ends = {run.path / evals_file(version) for version in (*one.evals()[:1], *one.evals()[-1:])}

        def look(file: Path, expected: str) -> str:
            if file.parent.name == EVALS:
                return has_changed(file, expected) if file in ends else ""
            return "" if _is_parquet(file) else "is torn: it is no whole Parquet file"

        try:
            check_records(one, found, look)
        except (UserError, OSError) as error:
            return [*_in_words(found.damages), str(error)]
    return _in_words(found.damages)


def evaluation_damage(run: Run, version: int) -> str:
    """What is wrong with the samples of the evaluation of a version; empty if nothing is, or there is no hash."""
    try:
        lines = read_lines(run.path / "hashes.jsonl")
    except UserError as error:
        return str(error)
    expected = next((line.get("evals") for line in reversed(lines) if line.get("step") == version), None)
    name = evals_file(version)
    problem = has_changed(run.path / name, expected) if isinstance(expected, str) else ""
    return f"{name} {problem}" if problem else ""


def _in_words(found: Sequence[Damage]) -> list[str]:
    """The first problems of each file or folder, and how many more there are."""
    parts: dict[str, list[Damage]] = {}
    for one in found:
        parts.setdefault(one.file.split("/")[0], []).append(one)
    told = []
    for name, some in parts.items():
        told += map(str, some[:SHOWN])
        if len(some) > SHOWN:
            told.append(f"{name}: {len(some) - SHOWN:,} more of this kind; hone verify lists all")
    return told


def _torn(log: Path) -> bool:
    """Whether the last line of a log has no end."""
    with open(log, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


def _is_parquet(file: Path) -> bool:
    """Whether a file begins and ends as Parquet does: its end is written last."""
    handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK)  # a third of what a file object takes; a run has thousands
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return False
        end = max(0, os.fstat(handle).st_size - len(_PARQUET))
        return os.pread(handle, len(_PARQUET), 0) == os.pread(handle, len(_PARQUET), end) == _PARQUET
    finally:
        os.close(handle)
