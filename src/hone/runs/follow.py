"""Follow a run by its files, while another process writes them."""

from __future__ import annotations

import time
from datetime import datetime

from hone.runs.display import make_display
from hone.runs.outputs import holder
from hone.runs.progress import Progress
from hone.runs.summary import Summary, describe_event
from hone.runs.view import RunTail

POLL = 0.25
"""Seconds between checks of the files."""
_PHASES = {"paused": "pause", "continued": "under way"}
"""Status of a run, or kind of an event → the phase to show."""


def follow(run: Summary, display_mode: str) -> None:
    """Show the run's display until no process writes the run. Raises Rewound if a resume began meanwhile."""
    resumes = run.info["resumes"]
    first_step, began = (resumes[-1]["step"], resumes[-1]["time"]) if resumes else (0, run.info["started"])
    progress = Progress(run.kind, run.progress.max_steps, time.time)
    display = make_display(display_mode, progress)
    tail = RunTail(run.path)
    tail.events.new()
    past = tail.steps()
    earlier = [pair for pair in past if pair[0]["step"] < first_step]
    for metrics, timings in earlier:
        progress.update(metrics["step"], metrics, timings)
    progress.step = None  # the pace of this process counts
    display.start(first_step)
    progress.began = datetime.fromisoformat(began).timestamp()
    try:
        for metrics, timings in past[len(earlier) : -1]:
            progress.update(metrics["step"], metrics, timings)
        for metrics, timings in past[len(earlier) :][-1:]:  # only the last of the past steps is shown
            display.after_step(metrics["step"], metrics, timings)
        progress.enter(_PHASES.get(run.status, "under way"))
        while True:
            held = holder(run.path) is not None
            for event in tail.events.new():
                if event.get("kind") in _PHASES:
                    progress.enter(_PHASES[event["kind"]])
                if event.get("kind") not in ("start", "weights"):  # not worth a line
                    display.message(describe_event(event))
            for metrics, timings in tail.steps():
                display.after_step(metrics["step"], metrics, timings)
                progress.enter("under way")
            if not held:
                return
            time.sleep(POLL)
    finally:
        display.at_end(run.status)
