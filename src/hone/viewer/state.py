"""How runs stand, kept up to date: of many runs little is read, and of one that grows its new lines only."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.alarms import OVER
from hone.runs.files import RESTORE, read_lines
from hone.runs.progress import Progress
from hone.runs.spent import RECENT, Spent
from hone.runs.summary import Summary, summarize
from hone.runs.tail import Rewound, Tail
from hone.viewer.events import read_events

LINES = 100
"""Lines of a log up to which all are read; of a longer one every few, all evaluations, and the last."""


@dataclass(frozen=True)
class RunState(Summary):
    """A summary, with what else a list of runs shows. `progress.history` of a long run has some steps only."""

    first_evals: dict[str, float | None] = field(default_factory=dict)
    """Metrics of the first evaluation, `eval/…` or `val/…`."""
    alarms: list[dict[str, Any]] = field(default_factory=list)
    """Events of the alarms that stand."""

    @property
    def left(self) -> float | None:
        """Seconds to its end at the pace of the last steps; None if it is not at work, or has taken none."""
        recent = self.spent.recent_seconds
        if self.status != "running" or not recent:
            return None
        return sum(recent) / len(recent) * max(0, self.progress.max_steps - self.progress.done)


class Watcher:
    """Reads the run in `folder`: at first its files, later what they got since. May be asked by several threads.

    `ours`: this process holds the run's lock.
    """

    def __init__(self, folder: Path, ours: bool = False):
        self._folder = folder
        self._ours = ours
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._metrics, self._timings = (
            Tail(self._folder / f"{name}.jsonl", lenient=True) for name in ("metrics", "timings")
        )
        self._events = Tail(self._folder / "events.jsonl")
        self._progress: Progress | None = None
        self._later = 0
        self._first_evals: dict[str, float | None] = {}
        self._alarms: dict[str, dict[str, Any]] = {}
        self._spent: dict[str, float] = {}
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)

    def look(self) -> RunState:
        """How the run stands now. UserError if it is none, or what is no log of it is damaged."""
        with self._lock:
            if self._later > LINES or self._metrics.damage or self._timings.damage:
                # or its end, of which all is read, would outweigh its beginning in the history, or a line that was
                # mended would not be seen
                self._begin()
            try:
                return self._look()
            except Rewound:
                self._begin()
                return self._look()
            except BaseException:
                self._begin()  # what was read of one file must not meet what is read of another later
                raise

    def _look(self) -> RunState:
        summary = summarize(self._folder, self._read, self._ours)
        damage = list(summary.damage)
        if not os.path.lexists(self._folder / "config.toml") and summary.progress.history:
            damage.append(_no_config(self._folder))
        damage += [log.damage for log in (self._metrics, self._timings) if log.damage]
        try:
            self._take(self._events.new(_of_alarms))
        except UserError:
            events = read_events(self._folder)
            self._take(events.all)
            damage.append(events.damage)
        facts: dict[str, Any] = {one.name: getattr(summary, one.name) for one in fields(summary)}
        facts["damage"] = damage
        return RunState(**facts, first_evals=self._first_evals, alarms=list(self._alarms.values()))

    def _take(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            if event.get("kind") == "alarm":
                self._alarms[str(event.get("name"))] = event
            elif event.get("kind") == OVER:
                self._alarms.pop(str(event.get("name")), None)

    def _read(self, folder: Path, info: dict[str, Any], max_steps: int) -> tuple[Progress, Spent]:
        timings = {self._timings.step_of(record): record for record in self._timings.new(_last)}
        lines = self._metrics.new(_some)
        known = self._progress
        self._progress = progress = Progress(info["kind"], max_steps)
        if known is not None:
            self._later += len(lines)
            progress.history = list(known.history)  # a copy, for what was handed out before must not change
            progress.step, progress.metrics, progress.timings = known.step, known.metrics, known.timings
            progress.evals, progress.eval_step = known.evals, known.eval_step
        for record in lines:
            step = self._metrics.step_of(record)
            progress.update(step, record, timings.get(step, {}))
            self._first_evals = self._first_evals or progress.evals
        if not progress.timings and progress.step in timings:
            progress.timings = timings[progress.step]  # its line came after the one with the metrics
        return progress, self._spending(info, timings)

    def _spending(self, info: dict[str, Any], timings: dict[int, dict[str, Any]]) -> Spent:
        for step, line in timings.items():
            for name in ("time/total", "usd/total"):
                if line.get(name) is not None:
                    self._spent[name] = max(self._spent.get(name, 0.0), line[name])
            self._spent["time/step"] = self._spent.get("time/step", 0.0) + (line.get("time/step") or 0.0)
            self._recent.append((step, line.get("time/step") or 0.0))
        assert self._progress is not None
        earlier = list(self._superseded())
        seconds = [self._spent.get("time/total"), info.get("seconds"), *(line.get("time/total") for line in earlier)]
        dollars = [self._spent.get("usd/total"), info.get("usd"), *(line.get("usd/total") for line in earlier)]
        return Spent(
            seconds=max((value for value in seconds if value is not None), default=self._spent.get("time/step", 0.0)),
            usd=max((value for value in dollars if value is not None), default=None),
            tokens=int(self._progress.metrics.get("tokens/total") or 0),
            recent_seconds=tuple(seconds for _, seconds in self._recent),
        )

    def _superseded(self) -> Iterator[dict[str, Any]]:
        """The last timings of each part of the run that was rolled back."""
        for log in self._folder.glob("superseded/*/timings.jsonl"):
            yield from read_lines(log)[-1:]


def _some(lines: list[bytes]) -> list[int]:
    """Which new lines of a log are read: those that tell how the run went, all of an evaluation, and what looks odd."""
    if len(lines) <= LINES:
        return list(range(len(lines)))
    chosen = set(range(0, len(lines), len(lines) // LINES + 1)) | set(range(len(lines) - RECENT, len(lines)))
    chosen |= {index for index, line in enumerate(lines) if b'"eval/' in line or b'"val/' in line or _is_odd(line)}
    return sorted(chosen)


def _last(lines: list[bytes]) -> list[int]:
    """Which new lines of timings are read: their totals grow, so the last ones; all, where they have none."""
    known = bool(lines) and b'"time/total"' in lines[-1]
    return list(range(max(0, len(lines) - RECENT) if known else 0, len(lines)))


def _of_alarms(lines: list[bytes]) -> list[int]:
    """Which new events are read: those of alarms, and what does not look like an event."""
    return [index for index, line in enumerate(lines) if b'"alarm' in line or _is_odd(line)]


def _is_odd(line: bytes) -> bool:
    """Whether a line does not look like a record."""
    return not (line.startswith(b"{") and line.rstrip().endswith(b"}"))


def _no_config(folder: Path) -> str:
    return f"{folder / 'config.toml'} is lost: what was set, and how many steps were planned, is not known; {RESTORE}"
