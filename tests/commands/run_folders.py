"""Run directories made by hand, as `hone rl` and `hone sft` write them, and a process that holds one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hone.config.rl import RLConfig
from hone.runs.files import new_dir, write_file
from hone.runs.rollouts import write_rollouts
from hone.runs.writer import RunWriter

CONFIG = """max_steps = {max_steps}
seed = 3
output_dir = "{folder}"

[model]
name = "some/model"
"""
RL = '\n[orchestrator]\nbatch_size = 12\n\n[orchestrator.env]\nid = "reverse-text"\n'
SFT = '\n[data]\nbatch_size = 12\n\n[data.env]\nid = "reverse-text"\n'
MACHINE = {"cpu": "A CPU", "cores": 2, "memory_gib": 8.0, "gpu": None}


def make_run(
    folder: Path, status: str = "done", kind: str = "rl", steps: int = 4, max_steps: int = 4, **info: Any
) -> Path:
    """A run that took `steps` of `max_steps`, with two evaluations of an RL run; further keys go into run.json."""
    folder.mkdir(parents=True)
    facts = {"format": "hone-run-1", "id": f"id-{folder.name}", "kind": kind, "status": status, "exact": True}
    facts |= {"inexact": [], "seed": 3, "command": ["/bin/hone", kind, "@", "a.toml"], "git": None, "resumes": []}
    facts |= {"started": "2026-01-02T03:04:05+00:00", "ended": None if status == "running" else "2026-01-02T03:05:05Z"}
    facts |= {"versions": {"hone-rl": "0.1.0", "torch": "2.13.0"}, "hardware": MACHINE, "threads": 1, "pid": 1}
    (folder / "run.json").write_text(json.dumps(facts | info))
    body = CONFIG.format(max_steps=max_steps, folder=folder) + (RL if kind == "rl" else SFT)
    (folder / "config.toml").write_text('env = "t"\nmodel = "m"\n' if kind == "eval" else body)
    write_lines(folder / "metrics.jsonl", [metrics(kind, step) for step in range(steps)])
    write_lines(
        folder / "timings.jsonl", [{"step": step, "time/step": 0.5, "tokens/s": 100.0} for step in range(steps)]
    )
    write_lines(folder / "events.jsonl", [{"kind": "start", "step": 0, "time": "2026-01-02T03:04:05+00:00"}])
    (folder / ".hone.lock").touch()
    return folder


def start(folder: Path, protect: Any = (), observers: Any = None, sources: Any = None, **settings: Any) -> RunWriter:
    """A run that begins, or is resumed."""
    parameters = settings.pop("parameters", None)
    config = RLConfig(**{"output_dir": folder, "max_steps": 8, "display": "plain"} | settings)
    more = {"sources": sources or {}, "observers": observers, "parameters": parameters}
    return RunWriter.start(config, "rl", ["hone", "rl"], list(protect), **more)


def metrics(kind: str, step: int) -> dict[str, Any]:
    if kind == "sft":
        return {"step": step, "loss": 5.0 - step, "lr": 1e-3}
    evaluation = {"eval/reverse-text/reward/mean": 0.25, "eval/reverse-text/reward/exact/mean": 0.0}
    return {"step": step, "reward/mean": 0.1 * step, "tokens/total": 100 * step} | (evaluation if step == 2 else {})


def write_lines(path: Path, records: list[dict[str, Any]], mode: str = "w") -> None:
    with open(path, mode, encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def checkpoint(run: Path, step: int, entries: list[dict[str, Any]] | None = None) -> Path:
    """A complete checkpoint, of a state without tensors."""
    with new_dir(run / "checkpoints" / f"step_{step}") as folder:
        write_file(folder / "state.json", json.dumps({"ledger": entries or []}) + "\n")
    return run / "checkpoints" / f"step_{step}"


def entry(draw: int, step: int, example: str, state: str = "trained", tokens: int = 10) -> dict[str, Any]:
    return {"draw": draw, "step": step, "example_id": example, "state": state, "tokens": tokens}


def rollouts(run: Path, step: int, *groups: tuple[int, str, list[str]]) -> None:
    """Rows of a step: (draw, example, state of each of its samples); each sample has 5 tokens."""
    (run / "rollouts").mkdir(exist_ok=True)
    rows = [
        {"step": step, "draw": draw, "example_id": example, "state": state, "token_ids": [1, 2, 3, 4, 5]}
        for draw, example, states in groups
        for state in states
    ]
    write_rollouts(run / "rollouts" / f"step_{step:06d}.parquet", rows)


HOLDER = """
import signal, sys
from pathlib import Path
from hone.runs.outputs import Lock, view
lock = Lock(Path(sys.argv[1]), getattr(view, sys.argv[3]))
if sys.argv[2] == "polite":
    def stop(*_):
        path = Path(sys.argv[1]) / "run.json"
        path.write_text(path.read_text().replace('"running"', '"stopped"'))
        sys.exit(143)
    signal.signal(signal.SIGTERM, stop)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("held", flush=True)
signal.pause()
"""


@contextmanager
def held(folder: Path, manner: str = "polite", lock: str = "LOCK") -> Iterator[subprocess.Popen]:
    """A process that holds a lock of the run. At SIGTERM a `polite` one marks it as stopped, a `deaf` one goes on."""
    command = [sys.executable, "-c", HOLDER, str(folder), manner, lock]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


class Crash(BaseException):
    """Nothing may catch it, as nothing catches SIGKILL."""


def crash_at(patch: Any, count: int, *names: str) -> None:
    """Make the count-th call of these functions of os crash instead of doing its work."""
    calls: list[Any] = []

    def crashing(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(args)
            if len(calls) == count:
                raise Crash
            return original(*args, **kwargs)

        return call

    for name in names:
        patch.setattr(os, name, crashing(getattr(os, name)))


def contents(folder: Path) -> dict[str, bytes]:
    """The content of every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def exact_files(folder: Path) -> dict[str, bytes]:
    """What is the same to the byte in runs of the same settings: logs, samples, and the last weights."""
    last = max((folder / "weights").glob("step_*"), key=lambda path: int(path.name.removeprefix("step_")))
    files = [folder / "metrics.jsonl", folder / "hashes.jsonl", *last.glob("*.safetensors"), *last.glob("README.md")]
    files += [path for kind in ("rollouts", "tokens", "evals") for path in folder.glob(f"{kind}/*")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Modification time, mode and content of everything below a folder, directories included."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        facts = path.stat()
        found[str(path)] = (facts.st_mtime_ns, facts.st_mode, path.read_bytes() if path.is_file() else b"")
    return found
