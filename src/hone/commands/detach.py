"""`--detach`: a training command goes on in the background, and the terminal is free.

The command starts itself again in a session of its own, so that closing the terminal doesn't reach it, and shows what
that process says until it has opened its run directory. From then on its output goes to `logs/<kind>.out` in there.
What goes wrong before is the command's own error, with its exit code.

Imports nothing heavy: the process in the foreground never needs torch.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from hone.errors import UserError

VARIABLE = "HONE_DETACHED"
"""Marks the process in the background, and hands it the command as it was typed and the pipe to report on."""
_POLL = 0.1


def in_background() -> bool:
    """True in the process that `start` made, until it calls `hand_over`."""
    return VARIABLE in os.environ


def start(name: str, argv: list[str]) -> int:
    """Starts command `name` again with `argv`, in the background; returns 0 once it is at work, else its exit code."""
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise UserError("--detach is not for several ranks: start torchrun itself in the background (nohup, tmux, …)")
    # Files, not pipes: the process in the background must not depend on someone who reads.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, _Interrupt() as interrupt:
        report, report_end = os.pipe()
        facts = json.dumps({"command": sys.argv, "report": report_end})
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "hone.cli", *name.split(), *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=[report_end],
            env=os.environ | {VARIABLE: facts},
            start_new_session=True,
        )
        os.close(report_end)
        try:
            opened = _watch(child, report, {1: out, 2: err}, interrupt)
        finally:
            os.close(report)
    if opened is None and interrupt.signum is not None:
        print("\nStopped before the run began.", file=sys.stderr)
        return 128 + interrupt.signum
    if opened is None:
        code = child.wait()
        return code if code >= 0 else 128 - code
    folder = shlex.quote(opened["folder"])
    print(
        f"Process {child.pid} goes on in the background. Its output: {opened['log']}\n"
        f"Watch it: hone runs attach {folder}\n"
        f"End it, saved: hone runs stop {folder}"
    )
    return 0


class _Interrupt:
    """While entered, Ctrl-C and SIGTERM only set `signum`: no child may be left behind, wherever they come."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def __enter__(self) -> _Interrupt:
        self._before = {signum: signal.signal(signum, self._note) for signum in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self.signum = signum


def _watch(
    child: subprocess.Popen, report: int, outputs: dict[int, BinaryIO], interrupt: _Interrupt
) -> dict[str, str] | None:
    """Shows what the child writes until it reports, and returns that; None if it has ended before.

    An interrupt ends the child. `outputs` are the files behind its streams, each shown on the stream of that number.
    """
    shown = dict.fromkeys(outputs, 0)
    while True:
        reported = bool(select.select([report], [], [], _POLL)[0])
        ended = child.poll() is not None
        for stream, output in outputs.items():
            while text := os.pread(output.fileno(), 2**16, shown[stream]):
                shown[stream] += os.write(stream, text)
        if reported and (message := os.read(report, 2**16)):
            return json.loads(message)
        if ended:
            return None
        if interrupt.signum is not None:
            child.terminate()


def enter() -> None:
    """To be called first in the background: the command is the one that was typed, and no hang-up ends it."""
    sys.argv = json.loads(os.environ[VARIABLE])["command"]
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def hand_over(folder: Path, kind: str) -> None:
    """To be called when the run directory is open: in the background, output goes to a file in it from now on.

    It begins with what was said so far. Then the process in the foreground is told, and ends. Does nothing in a process
    that isn't in the background.
    """
    if not in_background():
        return
    report = json.loads(os.environ.pop(VARIABLE))["report"]
    log = folder / "logs" / f"{kind}.out"
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.write(descriptor, os.pread(stream, os.fstat(stream).st_size, 0))
        os.dup2(descriptor, stream)
    os.close(descriptor)
    try:
        os.write(report, json.dumps({"folder": str(folder), "log": str(log)}).encode())
    except BrokenPipeError:
        pass  # the terminal is gone: nobody is left to tell
    finally:
        os.close(report)
