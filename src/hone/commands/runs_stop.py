"""`hone runs stop RUN`: end a run that is at work."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from hone.config.runs import RunsStopConfig
from hone.errors import UserError
from hone.runs.listing import find_run
from hone.runs.liveness import ELSEWHERE, holder
from hone.runs.progress import duration
from hone.runs.summary import Summary, summarize
from hone.runs.words import print_next, standing

POLL = 0.1
"""Seconds between two looks at the lock."""
TELL = 5.0
"""Seconds between two lines about the waiting, where they can't be drawn over one another."""
SLACK = 10.0
"""Seconds that a run may take beyond its grace period before its end is called overdue."""


def run(config: RunsStopConfig) -> int:
    """Ends the run and waits for that. Returns 0; 130 if the user stops waiting."""
    path = find_run(config.run)
    one = summarize(path)
    if holder(path) is None:
        raise UserError(f"{standing(one)}: there is nothing to stop")
    pid = send(path, signal.SIGKILL if config.now else signal.SIGTERM)
    if pid is not None:  # else it has ended by itself meanwhile
        grace = one.config.get("grace_seconds", 25.0)
        if not config.now:
            print(f"Asked process {pid} to end: it finishes its step, in {grace:g} s at most, and saves.", flush=True)
        try:
            wait(path, grace)
        except KeyboardInterrupt:
            print(f"\nNot waiting any longer; process {pid} still ends when it has saved.")
            return 130
    ended = summarize(path)
    print(standing(ended))
    if lost := _lost(ended):
        print(lost)
    print_next(ended)
    return 0


def send(path: Path, signum: int) -> int | None:
    """Sends the signal to the process that holds the run's lock, and to no other; its id, or None if it has just ended.

    UserError if that process can't be named or is another user's.
    """
    pid = holder(path)
    if pid is None:
        return None
    if pid == ELSEWHERE:
        raise UserError(
            f"{path} is being written by a process of another machine, container or user: stop it there "
            f"(`hone runs stop` on that side, or SIGTERM)"
        )
    try:
        # With a handle the number can't come to mean another process between the question and the signal.
        handle = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        try:
            if holder(path) != pid:
                return None
            if handle is None:
                os.kill(pid, signum)
            else:
                signal.pidfd_send_signal(handle, signum)
        finally:
            if handle is not None:
                os.close(handle)
    except ProcessLookupError:
        return None
    except PermissionError:
        raise UserError(f"process {pid}, which writes {path}, is another user's: only they can stop it") from None
    return pid


def wait(path: Path, grace: float) -> None:
    """Returns when no process writes the run any more; says every few seconds how long it has been."""
    began = told = time.monotonic()
    overdue = False
    drawn = sys.stdout.isatty()
    while holder(path) is not None:
        time.sleep(POLL)
        now = time.monotonic()
        if drawn and now - began > 1:
            print(f"\rwaiting, {duration(now - began)} ", end="", flush=True)
        elif not drawn and now - told > TELL:
            told = now
            print(f"still at work after {now - began:.0f} s", flush=True)
        if not overdue and now - began > grace + SLACK:
            overdue = True
            newline = "\n" if drawn else ""
            print(f"{newline}It takes longer than its grace period. Ctrl-C stops waiting; --now kills it.", flush=True)
    if drawn:
        print("\r" + " " * 20 + "\r", end="", flush=True)


def _lost(ended: Summary) -> str:
    """What a run that was killed has to do again."""
    if ended.status in ("done", "stopped", "budget"):
        return ""
    kept = ended.checkpoints[-1] if ended.checkpoints else 0
    again = ended.progress.done - kept
    if again <= 0:
        return ""
    where = f"since checkpoint step_{kept}" if kept else "for it has no checkpoint"
    return f"{again} step{'s' if again > 1 else ''} will be taken again, {where}."
