"""Following a run from its files, while another process writes them."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from hone.runs.display import make_display
from hone.runs.files import Tail
from hone.runs.outputs import holder
from hone.runs.progress import Progress
from hone.runs.summary import Summary, describe_event

POLL = 0.25
"""Seconds between two looks at the files."""
_QUIET = {"start", "weights"}
"""Events that are not worth a line."""
_PHASES = {"paused": "pause", "continued": "under way"}
"""Consequences of an event."""


class Steps:
    """The steps that a run has taken since the last call: each once its two lines, metrics and timings, are there."""

    def __init__(self, folder: Path):
        self._metrics, self._timings = Tail(folder / "metrics.jsonl"), Tail(folder / "timings.jsonl")
        self._waiting: list[dict[str, Any]] = []
        self._seconds: dict[int, dict[str, Any]] = {}

    def new(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return (metrics, timings) of the new steps, in their order."""
        self._waiting += self._metrics.new()
        self._seconds |= {record["step"]: record for record in self._timings.new()}
        found = []
        while self._waiting and self._waiting[0]["step"] in self._seconds:
            metrics = self._waiting.pop(0)
            found.append((metrics, self._seconds.pop(metrics["step"])))
        return found


def follow(run: Summary, display_mode: str) -> None:
    """Show the run as it would show itself, until no process writes it any more.

    Raises Rewound where a resume began meanwhile: follow it anew.
    """
    resumes = run.info["resumes"]
    first_step, began = (resumes[-1]["step"], resumes[-1]["time"]) if resumes else (0, run.info["started"])
    at, live = datetime.fromisoformat(began).timestamp(), False  # what is past is gone through at its own times
    progress = Progress(run.kind, run.progress.max_steps, lambda: time.time() if live else at)
    display = make_display(display_mode, progress)
    steps, events = Steps(run.path), Tail(run.path / "events.jsonl")
    taken = steps.new()
    events.new()
    earlier = [pair for pair in taken if pair[0]["step"] < first_step]
    for metrics, timings in earlier:
        progress.update(metrics["step"], metrics, timings)
    progress.step = None  # the pace is that of this process
    display.start(first_step)
    try:
        for metrics, timings in taken[len(earlier) :]:
            at += timings.get("time/step") or 0.0
            show = (
                display.after_step if metrics is taken[-1][0] else progress.update
            )  # of what is past only the last step
            show(metrics["step"], metrics, timings)
        live = True
        progress.enter(_PHASES.get(run.status, "under way"))
        while True:
            held = holder(run.path) is not None
            for event in events.new():
                if event.get("kind") in _PHASES:
                    progress.enter(_PHASES[event["kind"]])
                if event.get("kind") not in _QUIET:
                    display.message(describe_event(event))
            for metrics, timings in steps.new():
                display.after_step(metrics["step"], metrics, timings)
                progress.enter("under way")
            if not held:
                return
            time.sleep(POLL)
    finally:
        display.at_end(run.status)
