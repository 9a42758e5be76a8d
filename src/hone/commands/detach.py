"""Runs commands in the background (`--detach`), and ends roles with their launcher. Imports nothing heavy.

With `--detach`, the command starts a second process in a session that survives closing the terminal. The first process
shows the output of the second until the run directory is open; later output goes to `logs/<kind>.out` there. If the
second process fails before, the first ends with the same exit code. In mode split, roles end when their launcher ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from hone.errors import UserError
from hone.processes import Process, end_with

DETACHED = "HONE_DETACHED"
"""Environment variable that gives the background process the typed command and the pipe to report to."""
COMMAND, LAUNCHER = "HONE_LAUNCHED", "HONE_LAUNCHER"
"""Environment variables that give a role the typed command as JSON, and the launcher's process id."""


def in_background() -> bool:
    """Return True in the background process, until `hand_over`."""
    return DETACHED in os.environ


def start(name: str, argv: list[str]) -> int:
    """Start command `name` with `argv` in the background; return 0 once the run is open, else the exit code."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise UserError("--detach does not work with several ranks: start torchrun in the background (nohup, tmux, …)")
    received: list[int] = []  # Ctrl-C and SIGTERM are only noted here, so that no child is left behind
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda signum, _frame: received.append(signum)) for number in numbers}
    report, report_end = os.pipe()
    # Files, not pipes: a process that writes to a pipe needs a reader.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = Process(
                [sys.executable, "-P", "-m", "hone.cli", *name.split(), *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                pass_fds=[report_end],
                env=os.environ | {DETACHED: json.dumps({"command": sys.argv, "report": report_end})},
            )
            os.close(report_end)
            message, ended, passed_on = b"", False, {out: 0, err: 0}
            while not message and not ended:
                ended = child.poll() is not None
                if select.select([report], [], [], 0.1)[0]:
                    message = os.read(report, 2**16)
                for stream, output in ((1, out), (2, err)):
                    while text := os.pread(output.fileno(), 2**16, passed_on[output]):
                        passed_on[output] += os.write(stream, text)
                if received:
                    child.send(signal.SIGTERM)
        finally:
            os.close(report)
            for number, handler in before.items():
                signal.signal(number, handler)
    if not message:
        code = child.wait() or 0
        if received:
            print("\nStopped before the run began.", file=sys.stderr)
            return 128 + received[-1]
        return code if code >= 0 else 128 - code
    opened = json.loads(message)
    folder = shlex.quote(opened["folder"])
    print(
        f"Process {child.pid} goes on in the background. Its output: {opened['log']}\n"
        f"Watch it: hone runs attach {folder}\n"
        f"Save and end it: hone runs stop {folder}"
    )
    return 0


def enter() -> None:
    sys.argv = json.loads(os.environ[DETACHED])["command"]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def hand_over(folder: Path, kind: str) -> None:
    """Move all output of this process to a file in the run directory; then the foreground process ends."""
    if not in_background():
        return
    from hone.runs.view import PROCESS_LOGS  # `hone doctor` runs without packages

    report = json.loads(os.environ.pop(DETACHED))["report"]
    log = folder / PROCESS_LOGS / f"{kind}.out"
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.write(descriptor, os.pread(stream, os.fstat(stream).st_size, 0))
        os.dup2(descriptor, stream)
    os.close(descriptor)
    with contextlib.suppress(BrokenPipeError):  # the terminal is closed: no reader
        os.write(report, json.dumps({"folder": str(folder), "log": str(log)}).encode())
    os.close(report)


def end_with_launcher() -> None:
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None and sys.platform != "linux":  # on Linux the kernel kills it
        threading.Thread(target=end_with, args=(int(launcher),), daemon=True).start()
