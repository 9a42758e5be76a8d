"""Reading a log while another process writes it: each look gives the lines that are new."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.checked import LARGEST_LOG, RESTORE, open_file
from hone.runs.files import read_record, split_whole


class Rewound(Exception):
    """A log lost lines: a resume has rolled the run back, and what was read of it no longer holds."""


class Tail:
    """The records that a growing JSON-lines file got since the last call. A line that isn't whole yet waits.

    With `lenient`, for a log of steps, a line that is no record of a step is left out; `damage` tells of the first.
    """

    def __init__(self, path: Path, lenient: bool = False):
        self.path = path
        self.lenient = lenient
        self.damage = ""
        self._inode: int | None = None
        self._read = 0
        self._count = 0
        self._last = b""

    @property
    def inode(self) -> int:
        """Number of the file that is read: another one after a roll-back. 0 while there is none."""
        return self._inode or 0

    def new(self, choose: Callable[[list[bytes]], Iterable[int]] | None = None) -> list[dict[str, Any]]:
        """The new records; with `choose` those of the new lines whose indices it gives.

        Raises Rewound if what was read is no longer there, UserError for a damaged line.
        """
        lines = self._new_lines()
        wanted = range(len(lines)) if choose is None else choose(lines)
        records = [record for index in wanted if (record := self._record(index, lines[index])) is not None]
        self._read += sum(map(len, lines))
        self._count += len(lines)
        self._last = lines[-1] if lines else self._last
        return records

    def _record(self, index: int, line: bytes) -> dict[str, Any] | None:
        """The record in a new line; None for one that is left out."""
        try:
            record = read_record(self.path, self._count + index + 1, line)
            if self.lenient:
                self.step_of(record)
            return record
        except UserError as error:
            if not self.lenient:
                raise
            self.damage = self.damage or str(error)
            return None

    def step_of(self, record: dict[str, Any]) -> int:
        """The step of a record. UserError if it has none."""
        if not isinstance(step := record.get("step"), int):
            raise UserError(f"{self.path} is damaged (a line has no step): mend or delete that line")
        return step

    def _new_lines(self) -> list[bytes]:
        """The new lines that are whole; they stay new until they are counted."""
        try:
            file = open_file(self.path)
        except FileNotFoundError:
            if self._inode is None:
                return []
            raise Rewound from None
        with file:
            status = os.fstat(file.fileno())
            if status.st_size - self._read > LARGEST_LOG:
                raise UserError(f"{self.path} has {status.st_size:,} bytes, which no log of a run has: {RESTORE}")
            inode = status.st_ino
            if inode != (self._inode or inode):
                raise Rewound
            file.seek(self._read - len(self._last))
            if file.read(len(self._last)) != self._last:
                raise Rewound
            self._inode = inode
            return split_whole(file.read())
