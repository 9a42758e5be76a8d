"""Runs of the real command line in processes of their own, some of which kill themselves at a chosen event.

A fork server imports hone once; each trial is a fork of it, so a trial costs its training alone. The kill is a real
SIGKILL: no handler, no cleanup, no flush.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["hone.commands.rl", "hone.commands.sft", "hone.commands.eval", "pyarrow.parquet"])


@dataclass(frozen=True)
class Kill:
    """SIGKILL at the `count`-th call of `module.name`: before it, or (`after`) when it has done its work."""

    module: str
    name: str
    count: int
    after: bool = False


# Where a run can die, each in the middle of a step or of a file.
EVENTS = {
    "sampling": Kill("hone.inference.engine", "sample_tokens", 30),
    "grading": Kill("hone.environments.rubric.Rubric", "_no_reward", 40),
    "step": Kill("hone.trainer.optim.Optimizer", "_publish_masters", 4),
    "checkpoint write": Kill("safetensors.torch", "save_file", 5),
    "export": Kill("hone.trainer.export", "save_model", 2, after=True),
}


def run(argv: list[str], log: Path, kill: Kill | None = None) -> int:
    """Exit code of `hone ARGV` in a process of its own (-9: it was killed). What it prints goes to `log`."""
    process = _context.Process(target=_trial, args=(argv, str(log), kill))
    process.start()
    process.join(300)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"hone {' '.join(argv)} did not end; it printed:\n{log.read_text()}")
    return process.exitcode


def _trial(argv: list[str], log: str, kill: Kill | None) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    from hone import cli

    if kill is not None:
        _arm(kill)
    sys.argv = ["hone", *argv]
    code = cli.main(argv)
    sys.stdout.flush()
    os._exit(code)


def _arm(kill: Kill) -> None:
    holder: Any = _resolve(kill.module)
    original: Callable = getattr(holder, kill.name)
    calls = 0

    def wrapper(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == kill.count and not kill.after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if calls == kill.count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(holder, kill.name, wrapper)


def _resolve(dotted: str) -> Any:
    from importlib import import_module

    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(dotted)


def fingerprint(run_dir: Path) -> dict[str, str]:
    """SHA-256 of what exactness covers: metrics, every rollout file, all weights, all checkpoints."""
    files = [run_dir / "metrics.jsonl"]
    for pattern in ("rollouts/*.parquet", "weights/*/*", "checkpoints/*/*"):
        files += sorted(run_dir.glob(pattern))
    return {str(f.relative_to(run_dir)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}
