"""`hone runs continue RUN`: let a run that an alarm has paused go on."""

from __future__ import annotations

import time

from hone.config.runs import RunsContinueConfig
from hone.errors import UserError
from hone.runs.listing import find_run
from hone.runs.outputs import PAUSED
from hone.runs.pausing import POLL
from hone.runs.summary import KILLED, Summary, summarize
from hone.runs.words import next_commands, print_next, standing

PATIENCE = 10 * POLL
"""Seconds within which a run has seen that it may go on."""


def run(config: RunsContinueConfig) -> int:
    """Takes the mark of the pause away, which the run waits for. Returns 0."""
    path = find_run(config.run)
    one = summarize(path)
    if one.status != "paused":
        raise UserError(f"{standing(one)}: it is not paused{_instead(one)}")
    (path / PAUSED).unlink(missing_ok=True)
    print(f"{path} goes on with step {one.progress.current + 1} of {one.progress.max_steps}.", flush=True)
    until = time.monotonic() + PATIENCE
    while (one := summarize(path)).status == "paused" and time.monotonic() < until:
        time.sleep(POLL / 5)
    print_next(one)
    return 0


def _instead(one: Summary) -> str:
    """How a run that was killed in its pause goes on."""
    commands = next_commands(one) if one.status == KILLED else []
    return f"; to {commands[0][0]}: {commands[0][1]}" if commands else ""
