"""Runs of the real command line in processes of their own, some of which kill themselves, or meet a broken disk.

A fork server imports hone, and what it imports later, once; each trial is a fork of it, so a trial costs its training
alone. A kill is a real SIGKILL: no handler, no clean-up, no flush.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import traps
from traps import Op, Trap

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        *(
            "hone.commands.training",
            "hone.extensions.audit.preflight",
            "hone.loops.rl",
            "hone.commands.eval",
            "pyarrow.parquet",
            "reverse_text",
            "traps",
        ),
        # What torch, pyarrow, tokenizers and the evaluation import when they are first used.
        *("torch._dynamo", "torch.distributed.tensor", "pandas", "scipy.stats", "jinja2"),
    ]
)
KILLED = -9
_lock = threading.Lock()
"""Starting a process polls all others, and an exit code can be fetched once: not by two threads at a time."""
_LIMIT = 900
"""Seconds after which a trial counts as hung."""


def run(argv: list[str], log: Path, *traps: Trap, record: Path | None = None) -> int:
    """Exit code of `hone ARGV` in a process of its own (-9: killed); it prints to `log`, its operations to `record`."""
    return _exit_code(_start(argv, str(log), traps, record), argv, log)


def run_for(argv: list[str], log: Path, seconds: float, *signums: int) -> int:
    """`run`, but sent signals (SIGKILL) this long after its run directory is there (or, in a resume, its start)."""
    process = _start(argv, str(log), (), None)
    begun = output_dir(argv) / "run.json"
    deadline = time.monotonic() + _LIMIT
    while not begun.exists() and process.exitcode is None and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(seconds)
    for signum in signums or (signal.SIGKILL,):
        if process.exitcode is None:
            assert process.pid
            with suppress(ProcessLookupError):  # it has ended, which the fork server was not yet told of
                os.kill(process.pid, signum)
            time.sleep(0.01)
    return _exit_code(process, argv, log)


def operations(record: Path) -> list[Op]:
    return [Op(*op) for op in json.loads(record.read_text())]


def output_dir(argv: list[str]) -> Path:
    return Path(argv[argv.index("--output-dir") + 1])


def _start(*args: object):
    process = context.Process(target=trial, args=args)
    with _lock:
        process.start()
    return process


def _exit_code(process, argv: list[str], log: Path) -> int:
    deadline = time.monotonic() + _LIMIT
    while time.monotonic() < deadline:
        with _lock:
            code = process.exitcode
        if code is not None:
            return code
        time.sleep(0.005)
    process.kill()
    raise AssertionError(f"hone {' '.join(argv)} did not end; it printed:\n{log.read_text()}")


def trial(argv: list[str], log: str, chosen: tuple[Trap, ...], record: Path | None) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from hone import cli

    armed = traps.arm(output_dir(argv), chosen) if chosen or record else None
    sys.argv = ["hone", *argv]
    code = cli.main(argv)
    sys.stdout.flush()
    if record and armed:
        record.write_text(json.dumps(armed.ops))
    os._exit(code)
