"""Reads what trackers wrote: W&B's transaction log, with its own records; Trackio's SQLite file."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a `run-*.wandb`: LevelDB's log format (its doc/log_format.md) after a header; no torn end."""
    from wandb.proto.wandb_internal_pb2 import Record

    content = file.read_bytes()
    assert content[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(content):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        at += 7
        if kind == 0 or at + length > len(content):
            return
        parts = content[at : at + length] if kind in (_FULL, _FIRST) else parts + content[at : at + length]
        at += length
        if kind in (_FULL, _LAST):
            record = Record()
            record.ParseFromString(parts)
            yield record


class WandbFile:
    """A W&B run as it was written: `run` (its record), `config`, `history` (a dict a row), `alerts`, `exit_code`."""

    def __init__(self, folder: Path):
        (self.path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
        self.history: list[dict[str, Any]] = []
        self.alerts: list[Any] = []
        self.exit_code: int | None = None
        for record in wandb_records(self.path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                self.run = record.run
                self.config = {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif kind == "history":
                row: dict[str, Any] = {}
                for item in record.history.item:
                    name, *inner = item.nested_key or [item.key]
                    value = json.loads(item.value_json)
                    row[name] = row.get(name, {}) | {inner[0]: value} if inner else value
                self.history.append({name: value for name, value in row.items() if not name.startswith("_")})
            elif kind == "alert":
                self.alerts.append(record.alert)
            elif kind == "exit":
                self.exit_code = record.exit.exit_code

    def values(self, name: str) -> list[tuple[int, Any]]:
        """(step, value) of a metric, in the order in which they were logged."""
        return [(row["step"], row[name]) for row in self.history if name in row]

    def table(self, value: dict[str, Any]) -> dict[str, Any]:
        """`columns` and `data` of a table that a history row names."""
        return json.loads((self.path.parent / "files" / value["path"]).read_text())


class TrackioFile:
    """A project of Trackio: `rows` of (run name, step, metrics), `alerts` (run name, step, title, text), `configs`."""

    def __init__(self, folder: Path, project: str):
        with sqlite3.connect(f"file:{folder / project}.db?mode=ro", uri=True) as db:
            found = db.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
            self.rows = [(run, step, json.loads(metrics)) for run, step, metrics in found]
            self.alerts = db.execute("SELECT run_name, step, title, text FROM alerts ORDER BY id").fetchall()
            configs = db.execute("SELECT run_name, config FROM configs ORDER BY id").fetchall()
            self.configs = {run: json.loads(config) for run, config in configs}

    def values(self, run: str, name: str) -> list[tuple[int, Any]]:
        """(step, value) of a metric of a run, in the order in which they were logged."""
        return [(step, metrics[name]) for of, step, metrics in self.rows if of == run and name in metrics]
