"""The runs under a folder, and their names in URLs. A run's summary is cached until its files change."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.listing import count_text, find_runs, is_previous
from hone.runs.outputs import holder
from hone.runs.summary import Summary, summarize
from hone.runs.view import RunView, existing_run


class NotFound(UserError):
    """Raised for a run, step or sample that does not exist."""


@dataclass(frozen=True)
class Entry:
    """A run: `slug` is its name in URLs, `name` its path below the root. It has either a `summary` or `damage`.

    `damage` says why the run is unreadable. `previous`: a later run in the same directory moved this run aside.
    """

    slug: str
    name: str
    path: Path
    previous: bool
    summary: Summary | None = None
    damage: str = ""

    @property
    def is_evaluation(self) -> bool:
        return self.summary is not None and self.summary.kind == "eval"

    @property
    def state(self) -> Summary:
        assert self.summary is not None
        return self.summary


class Catalog:
    """All runs under `root`, which may itself be a run. Raises UserError if the folder does not exist."""

    def __init__(self, root: Path):
        if not root.is_dir():
            raise UserError(f"there is no folder {root}: name a run, or a folder with runs")
        self.root = root
        self._known: dict[Path, tuple[Any, Entry]] = {}

    def entries(self) -> list[Entry]:
        """Return the existing runs, the last started first."""

        def began(entry: Entry) -> str:
            info = entry.summary.info if entry.summary else {}
            return info.get("started") or info.get("ended") or ""

        found = [self._entry(slug, path) for slug, path in self._slugs().items()]
        return sorted([entry for entry in found if entry is not None], key=began, reverse=True)

    def entry(self, slug: str) -> Entry:
        """Return a run. Raises NotFound if it does not exist, UserError if it is unreadable."""
        path = self._slugs().get(slug)
        entry = self._entry(slug, path) if path else None
        if entry is None:
            raise NotFound(f"there is no run {slug!r} under {self.root}")
        if entry.damage:
            raise UserError(entry.damage)
        return entry

    def _slugs(self) -> dict[str, Path]:
        slugs: dict[str, Path] = {}
        for path in find_runs(self.root):
            name = _as_text("~".join(path.relative_to(self.root).parts) or self.root.resolve().name or "run")
            slugs[name if name not in slugs else f"{name}~{len(slugs)}"] = path
        return slugs

    def _entry(self, slug: str, path: Path) -> Entry | None:
        files = (slug, RunView(path).stamp(), holder(path))
        known = self._known.get(path)
        if known is not None and known[0] == files:
            return known[1]
        relative = path.relative_to(self.root)
        summary, damage = None, ""
        try:
            if existing_run(path) is None:
                return None  # run.json of another program
            read = summarize(path)
            _ = read.alarms  # raises if the log of events is damaged
            summary = read
        except FileNotFoundError:
            return None  # moved aside while it was read
        except OSError as error:
            damage = f"{path} cannot be read ({error.strerror or error})"
        except UserError as error:
            damage = str(error)
        name = _as_text(relative.as_posix()) if relative.parts else slug
        entry = Entry(slug, name, path, is_previous(relative), summary, damage)
        self._known[path] = files, entry
        return entry


def counted(entries: Sequence[Entry]) -> str:
    """Count the readable runs in words, as `hone runs list` does, such as `4 runs, 1 evaluation`."""
    readable = [one for one in entries if not one.damage]
    evaluations = sum(one.is_evaluation for one in readable)
    previous = sum(one.previous and not one.is_evaluation for one in readable)
    return count_text(len(readable) - evaluations - previous, evaluations, previous)


def _as_text(name: str) -> str:
    """Return a file name, which may be any bytes, as text."""
    return os.fsencode(name).decode("utf-8", "replace")
