"""The events of a run whose log may be damaged: those that can be read, and what is wrong with the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hone.errors import UserError
from hone.runs.files import read_record, whole_lines


class Events(NamedTuple):
    """Events in the order of the log; `damage` is a sentence about the first line that is none, or empty."""

    all: list[dict[str, Any]]
    damage: str = ""


def read_events(folder: Path) -> Events:
    """The events of the run in `folder`."""
    path, found, damage = folder / "events.jsonl", [], ""
    for number, line in enumerate(whole_lines(path), 1):
        try:
            found.append(read_record(path, number, line))
        except UserError as error:
            damage = damage or str(error)
    return Events(found, damage)
