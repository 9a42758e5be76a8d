"""The runs under a folder, each with the name it has in URLs. What was read of a run is kept until its files change."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.alarms import OVER
from hone.runs.budget import RECENT, Spent
from hone.runs.files import read_lines, read_record, whole_lines
from hone.runs.listing import find_runs, is_previous
from hone.runs.outputs import existing_run, holder, run_info
from hone.runs.progress import Progress
from hone.runs.summary import Summary, summarize

_FILES = ("run.json", "config.toml", "metrics.jsonl", "timings.jsonl", "events.jsonl", "metadata.json")
"""What a summary is made of."""
_LINES = 100
"""Lines of a log up to which all are read; of a longer one every few, all evaluations, and the last."""


class NotFound(UserError):
    """A page of a run, step or sample that is not there."""


@dataclass(frozen=True, kw_only=True)
class RunState(Summary):
    """A summary, with what else a list of runs shows. `progress.history` of a long run has some steps only."""

    first_evals: dict[str, float | None]
    """Metrics of the first evaluation, `eval/…` or `val/…`."""
    alarms: list[dict[str, Any]]
    """Events of the alarms that are not over."""

    @property
    def left(self) -> float | None:
        """Seconds to its end at the pace of the last steps; None if it is not at work, or has taken none."""
        recent = self.spent.recent_seconds
        if self.status != "running" or not recent:
            return None
        return sum(recent) / len(recent) * max(0, self.progress.max_steps - self.progress.done)


@dataclass(frozen=True)
class Entry:
    """A run: `slug` names it in URLs, `name` is its path below the root. One of `summary` and `damage` is there.

    `previous`: a later run in the same directory has moved it aside. `damage`: why it is unreadable, in a sentence.
    """

    slug: str
    name: str
    path: Path
    previous: bool
    summary: RunState | None = None
    damage: str = ""

    @property
    def is_evaluation(self) -> bool:
        return self.summary is not None and self.summary.kind == "eval"

    @property
    def state(self) -> RunState:
        """The summary of a run that can be read."""
        assert self.summary is not None
        return self.summary


class Catalog:
    """All runs under `root`, which may itself be one. UserError if there is no such folder."""

    def __init__(self, root: Path):
        if not root.is_dir():
            raise UserError(f"there is no folder {root}: name a run, or the folder that holds your runs")
        self.root = root
        self._known: dict[Path, tuple[Any, Entry]] = {}
        self._lock = threading.Lock()

    @property
    def around(self) -> Path | None:
        """The run in whose folder the root lies, if it does."""
        return next((folder for folder in self.root.resolve().parents if run_info(folder) is not None), None)

    def entries(self) -> list[Entry]:
        """Return the runs that are there now, the one begun last first."""

        def began(entry: Entry) -> str:
            info = entry.summary.info if entry.summary else {}
            return info.get("started") or info.get("ended") or ""

        found = [self._entry(slug, path) for slug, path in self._slugs().items()]
        return sorted([entry for entry in found if entry is not None], key=began, reverse=True)

    def entry(self, slug: str) -> Entry:
        """Return the run of that name. NotFound if there is none, UserError if it is unreadable."""
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
            parts = path.relative_to(self.root).parts or (self.root.resolve().name or "run",)
            name = slug = _as_text("~".join(parts))
            count = 1
            while slug in slugs:
                count += 1
                slug = f"{name}~{count}"
            slugs[slug] = path
        return slugs

    def _entry(self, slug: str, path: Path) -> Entry | None:
        """Return a run, as it was read before if its files are the same; None for what is none."""
        state = (slug, stamps(path, _FILES), holder(path))
        with self._lock:
            known = self._known.get(path)
        if known is not None and known[0] == state:
            return known[1]
        relative = path.relative_to(self.root)
        name = _as_text(relative.as_posix()) if relative.parts else slug
        summary, damage = None, ""
        try:
            if existing_run(path) is None:
                return None  # a run.json of something else
            summary = read_state(path)
        except FileNotFoundError:
            return None  # moved aside while it was read
        except OSError as error:
            damage = f"{path} cannot be read ({error.strerror or error})"
        except UserError as error:
            damage = str(error)
        entry = Entry(slug, name, path, is_previous(relative), summary, damage)
        with self._lock:
            self._known[path] = (state, entry)
        return entry


def stamps(folder: Path, names: tuple[str, ...]) -> tuple[tuple[int, int] | None, ...]:
    """Return when each file was last changed, in ns, and its bytes; None for one that is not there."""

    def stamp(path: Path) -> tuple[int, int] | None:
        try:
            stat = path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size

    return tuple(stamp(folder / name) for name in names)


def _as_text(name: str) -> str:
    """Return the name of a file as text, which not all are."""
    return os.fsencode(name).decode("utf-8", "replace")


def read_state(path: Path) -> RunState:
    """Read how the run in `path` stands. UserError if it is none, or a file of it is damaged."""
    summary = summarize(path, _training)
    alarms: dict[str, dict[str, Any]] = {}
    for event in read_lines(path / "events.jsonl"):
        if event.get("kind") == "alarm":
            alarms[str(event.get("name"))] = event
        elif event.get("kind") == OVER:
            alarms.pop(str(event.get("name")), None)
    facts: dict[str, Any] = {one.name: getattr(summary, one.name) for one in fields(summary)}
    return RunState(**facts, first_evals=_first_evals(path), alarms=list(alarms.values()))


def _training(folder: Path, info: dict[str, Any], max_steps: int) -> tuple[Progress, Spent]:
    """Read how far a run came and what it spent, from some lines of long logs: totals grow, so the last ones count."""
    progress = Progress(info["kind"], max_steps)
    lines = whole_lines(folder / "timings.jsonl")
    has_total = bool(lines) and b'"time/total"' in lines[-1]
    timings = _records(
        folder / "timings.jsonl", lines, range(max(0, len(lines) - RECENT) if has_total else 0, len(lines))
    )
    for step, record in _records(folder / "metrics.jsonl").items():
        progress.update(step, record, timings.get(step, {}))
    earlier = [read_lines(log)[-1:] for log in folder.glob("superseded/*/timings.jsonl")]
    totals = [*timings.values(), *(line for last in earlier for line in last)]
    seconds, usd = (
        max((line[name] for line in [*totals, {name: info.get(key)}] if line.get(name) is not None), default=None)
        for name, key in (("time/total", "seconds"), ("usd/total", "usd"))
    )
    steps = [line.get("time/step") or 0.0 for line in timings.values()]
    tokens = int(progress.metrics.get("tokens/total") or 0)
    return progress, Spent(sum(steps) if seconds is None else seconds, usd, tokens, tuple(steps[-RECENT:]))


def _records(path: Path, lines: list[bytes] | None = None, chosen: range | None = None) -> dict[int, dict[str, Any]]:
    """Return records of a log by step: of a short one all, of a long one every few, all evaluations and the last."""
    lines = whole_lines(path) if lines is None else lines
    wanted = set(chosen or range(0, len(lines), len(lines) // _LINES + 1))
    if chosen is None:
        wanted |= set(range(max(0, len(lines) - RECENT), len(lines)))
        wanted |= {i for i, line in enumerate(lines) if b'"eval/' in line or b'"val/' in line}
    wanted |= {i for i, line in enumerate(lines) if not (line.startswith(b"{") and line.rstrip().endswith(b"}"))}
    found = {}
    for number in sorted(wanted):
        record = read_record(path, number + 1, lines[number])
        found[record["step"]] = record
    return found


def _first_evals(path: Path) -> dict[str, float | None]:
    """Return the metrics of the first evaluation that metrics.jsonl has."""
    log = path / "metrics.jsonl"
    for number, line in enumerate(whole_lines(log) if log.is_file() else (), 1):
        if b'"eval/' in line or b'"val/' in line:
            record = read_record(log, number, line)
            return {name: value for name, value in record.items() if name.startswith(("eval/", "val/"))}
    return {}
