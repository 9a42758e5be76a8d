"""Following a run from its files, while another process writes them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from hone.runs.display import make_display
from hone.runs.files import open_file, read_record, split_lines
from hone.runs.outputs import holder
from hone.runs.progress import Progress
from hone.runs.summary import Summary, describe_event

POLL = 0.25
"""Seconds between two looks at the files."""
_QUIET = {"start", "weights"}
"""Events that are not worth a line."""
_PHASES = {"paused": "pause", "continued": "under way"}
"""Consequences of an event."""


class Rewound(Exception):
    """A log lost lines: a resume has rolled the run back, and earlier reads of it are no longer valid."""


class Tail:
    """The records that a growing JSON-lines file got since the last call. A line that isn't whole yet waits."""

    def __init__(self, path: Path):
        self.path = path
        self._inode = 0  # a roll-back puts another file in its place
        self._bytes = self._lines = 0

    def new(self) -> list[dict[str, Any]]:
        """Return the new records. Rewound if what was read is no longer there, UserError for a damaged line."""
        if not self._inode and not self.path.exists():
            return []
        try:
            file = open_file(self.path)
        except FileNotFoundError:
            raise Rewound from None
        with file:
            status = os.fstat(file.fileno())
            if status.st_ino != (self._inode or status.st_ino) or status.st_size < self._bytes:
                raise Rewound
            file.seek(self._bytes)
            lines = split_lines(file.read())
        records = [read_record(self.path, self._lines + number, line) for number, line in enumerate(lines, 1)]
        self._inode = status.st_ino
        self._bytes += sum(map(len, lines))
        self._lines += len(lines)
        return records


def new_steps(metrics: Tail, timings: Tail) -> Iterator[list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Yield, again and again, (metrics, timings) of the steps that the logs got since, once both lines are there."""
    waiting: list[dict[str, Any]] = []
    seconds: dict[int, dict[str, Any]] = {}
    while True:
        waiting += metrics.new()
        seconds |= {record["step"]: record for record in timings.new()}
        ready = 0
        while ready < len(waiting) and waiting[ready]["step"] in seconds:
            ready += 1
        yield [(line, seconds.pop(line["step"])) for line in waiting[:ready]]
        del waiting[:ready]


def follow(run: Summary, display_mode: str) -> None:
    """Show the run as it would show itself, until no process writes it. Rewound if a resume began meanwhile."""
    resumes = run.info["resumes"]
    first_step, began = (resumes[-1]["step"], resumes[-1]["time"]) if resumes else (0, run.info["started"])
    progress = Progress(run.kind, run.progress.max_steps, time.time)
    display = make_display(display_mode, progress)
    steps = new_steps(Tail(run.path / "metrics.jsonl"), Tail(run.path / "timings.jsonl"))
    events = Tail(run.path / "events.jsonl")
    events.new()
    past = next(steps)
    earlier = [pair for pair in past if pair[0]["step"] < first_step]
    for metrics, timings in earlier:
        progress.update(metrics["step"], metrics, timings)
    progress.step = None  # the pace is that of this process
    display.start(first_step)
    progress.began = datetime.fromisoformat(began).timestamp()
    try:
        for metrics, timings in past[len(earlier) : -1]:
            progress.update(metrics["step"], metrics, timings)
        for metrics, timings in past[len(earlier) :][-1:]:  # of what is past only the last step is shown
            display.after_step(metrics["step"], metrics, timings)
        progress.enter(_PHASES.get(run.status, "under way"))
        while True:
            held = holder(run.path) is not None
            for event in events.new():
                if event.get("kind") in _PHASES:
                    progress.enter(_PHASES[event["kind"]])
                if event.get("kind") not in _QUIET:
                    display.message(describe_event(event))
            for metrics, timings in next(steps):
                display.after_step(metrics["step"], metrics, timings)
                progress.enter("under way")
            if not held:
                return
            time.sleep(POLL)
    finally:
        display.at_end(run.status)
