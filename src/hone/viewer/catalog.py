"""The runs under a folder, each with the name it has in URLs. What was read of a run is kept until its files change."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.listing import find_runs, is_previous
from hone.runs.liveness import holder
from hone.runs.outputs import existing_run, run_info
from hone.viewer.state import RunState, Watcher

_FILES = ("run.json", "config.toml", "metrics.jsonl", "timings.jsonl", "events.jsonl", "metadata.json")
"""What a summary is made of."""


class NotFound(UserError):
    """A page of a run, step or sample that is not there."""


@dataclass(frozen=True)
class Entry:
    """A run: `slug` names it in URLs, `name` is its path below the root. One of `summary` and `damage` is there."""

    slug: str
    name: str
    path: Path
    previous: bool
    """Whether a later run in the same directory has moved it aside."""
    summary: RunState | None = None
    damage: str = ""
    """Why it can't be shown, in a sentence."""

    @property
    def is_evaluation(self) -> bool:
        return self.summary is not None and self.summary.kind == "eval"


class Catalog:
    """All runs under `root`, which may itself be one. UserError if there is no such folder."""

    def __init__(self, root: Path):
        if not root.is_dir():
            raise UserError(f"there is no folder {root}: name a run, or the folder that holds your runs")
        self.root = root
        self._known: dict[Path, tuple[Any, Entry]] = {}
        self._watchers: dict[Path, Watcher] = {}
        self._lock = threading.Lock()

    @property
    def around(self) -> Path | None:
        """The run in whose folder the root lies, if it does: what is looked for is likely that."""
        return next((folder for folder in self.root.resolve().parents if run_info(folder) is not None), None)

    def entries(self) -> list[Entry]:
        """Those that are there now, the one begun last first."""
        slugs = self._slugs()
        found = [entry for slug, path in slugs.items() if (entry := self._entry(slug, path)) is not None]
        return sorted(found, key=_began, reverse=True)

    def entry(self, slug: str) -> Entry:
        """NotFound if there is no such run, UserError if it is damaged."""
        path = self._slugs().get(slug)
        entry = self._entry(slug, path) if path else None
        if entry is None:
            raise NotFound(f"there is no run {slug!r} under {self.root}")
        if entry.damage:
            raise UserError(entry.damage)
        return entry

    def summary(self, slug: str) -> RunState:
        """As `entry`."""
        summary = self.entry(slug).summary
        assert summary is not None
        return summary

    def _slugs(self) -> dict[str, Path]:
        slugs: dict[str, Path] = {}
        for path in find_runs(self.root):
            parts = path.relative_to(self.root).parts or (self.root.resolve().name or "run",)
            name = slug = _as_text("~".join(parts))
            count = 1
            while slug in slugs:
                count += 1
                slug = f"{name}~{count}"
            slugs[slug] = path
        return slugs

    def _entry(self, slug: str, path: Path) -> Entry | None:
        state = (slug, [_state(path / name) for name in _FILES], holder(path))
        with self._lock:
            known = self._known.get(path)
        if known is not None and known[0] == state:
            return known[1]
        entry = self._read(slug, path)
        if entry is not None:
            with self._lock:
                self._known[path] = (state, entry)
        return entry

    def _read(self, slug: str, path: Path) -> Entry | None:
        relative = path.relative_to(self.root)
        name = _as_text(relative.as_posix()) if relative.parts else slug
        previous = is_previous(relative)
        with self._lock:
            watcher = self._watchers.setdefault(path, Watcher(path))
        try:
            if existing_run(path) is None:
                return None  # a run.json of something else
            return Entry(slug, name, path, previous, watcher.look())
        except UserError as error:
            return Entry(slug, name, path, previous, damage=str(error))
        except FileNotFoundError:
            return None  # moved aside while it was read
        except OSError as error:
            return Entry(slug, name, path, previous, damage=f"{path} cannot be read ({error.strerror or error})")


def _as_text(name: str) -> str:
    """The name of a file as text, which not all are."""
    return os.fsencode(name).decode("utf-8", "replace")


def _state(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _began(entry: Entry) -> str:
    info = entry.summary.info if entry.summary else {}
    return info.get("started") or info.get("ended") or ""
