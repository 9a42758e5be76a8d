"""The process that a tracker's client lives in: python -P -m hone.runs.monitors.child NAME FD

Reads JSON lines `[method, [arguments]]` from the socket FD, and answers each with a line: `{"note": text or null}`, or
`{"failed": cause}`, which ends it. The first is `start`. When the socket ends without `finish`, the run was killed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from hone.runs.monitors.background import FINISH_SECONDS, cause_of
from hone.runs.monitors.tracker import TRACKERS, Tracker


def main(name: str, fd: int) -> None:
    """Serve one run."""
    os.set_inheritable(fd, False)  # else what the client starts keeps the line open when this process has died
    stream = socket.socket(fileno=fd).makefile("rwb")
    tracker: Tracker | None = None

    def do(method: str, args: list[Any]) -> str | None:
        nonlocal tracker
        if method == "start":
            folder, info, settings, config, pid = args
            sys.argv = info["command"] or sys.argv  # which W&B shows
            tracker = TRACKERS[name](Path(folder), info, settings, pid)
            return tracker.start(config)
        assert tracker is not None
        return getattr(tracker, method)(*args)

    method = ""
    for line in stream:
        method, args = json.loads(line)
        try:
            answer = {"note": do(method, args)}
        except BaseException as error:
            traceback.print_exc()
            answer = {"failed": cause_of(error)}
        try:
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()
        except OSError:
            break  # the run is gone
        if "failed" in answer:
            _end(1)
        if method == "finish":
            _end(0)
    if tracker is not None:
        threading.Timer(FINISH_SECONDS, _end, [1]).start()
        try:
            tracker.finish("failed")
        except BaseException:
            traceback.print_exc()
    _end(1)


def _end(code: int) -> None:
    """End now: what clients do at the exit of an interpreter may wait for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
