"""A run that waits for its user, because an alarm asked for that."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from hone.runs.files import write_json
from hone.runs.outputs import PAUSED
from hone.runs.writer import RunWriter

POLL = 0.5
"""Seconds between two looks whether it may go on."""


def pause(run: RunWriter, step: int, cause: str, ended: Callable[[], bool]) -> None:
    """Waits until `hone runs continue`, or until the run has `ended` otherwise; version `step` is saved.

    A file in the run's directory is there meanwhile: whoever takes it away lets the run go on.
    """
    mark = run.folder / PAUSED
    write_json(mark, {"step": step, "alarm": cause})
    run.note(status="paused")
    run.event("paused", step, alarm=cause)
    folder = shlex.quote(str(run.folder))
    run.display.message(
        f"Paused before step {step + 1} by the alarm {cause}; it is saved.\n"
        f"      Let it go on: hone runs continue {folder}\n      End it: hone runs stop {folder}"
    )
    began = time.perf_counter()
    try:
        with run.phase("pause"):
            while mark.exists() and not ended():
                time.sleep(POLL)
    finally:
        mark.unlink(missing_ok=True)
        run.note(status="running")
    run.waited(time.perf_counter() - began)
    if not ended():
        run.event("continued", step)
