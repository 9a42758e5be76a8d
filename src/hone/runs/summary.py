"""A run in a few facts, from its files: how it stands, how far it came, its latest numbers. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.checked import RESTORE, is_number, parse_time
from hone.runs.files import read_json, read_lines
from hone.runs.liveness import holder
from hone.runs.outputs import existing_run
from hone.runs.progress import Progress
from hone.runs.reader import Run
from hone.runs.settings import read_config
from hone.runs.spent import Spent, spent

KILLED = "killed"
"""Status of a run whose run.json says that a process is at it while none is: it ended without a word."""
_FACTS = {"status", "seed", "command", "versions", "hardware", "threads"}
_TRAINING_FACTS = {"exact", "inexact", "started", "resumes"}
"""What the words about a run need of run.json."""
_AT_WORK = ("running", "paused", "copying")


@dataclass(frozen=True)
class Summary:
    """How a run stands. `config` is empty while it has none; `pid` as `hone.runs.liveness.holder` says it.

    `spent` is what all of its processes took so far; of an evaluation it knows the seconds only.
    """

    path: Path
    info: dict[str, Any]
    config: dict[str, Any]
    status: str
    pid: int | None
    progress: Progress
    spent: Spent
    damage: list[str] = field(default_factory=list)
    """What of the run is lost or can't be read, in sentences; all else can be shown."""

    @property
    def seconds(self) -> float:
        """Wall seconds of all processes of the run so far."""
        return self.spent.seconds

    @property
    def kind(self) -> str:
        """sft, rl or eval."""
        return self.info["kind"]

    @property
    def task(self) -> str | None:
        """Id of the environment, if there is one."""
        section = self.config.get({"rl": "orchestrator", "sft": "data"}.get(self.kind, ""), {})
        return self.config.get("env") if self.kind == "eval" else section.get("env", {}).get("id")

    @property
    def checkpoints(self) -> list[int]:
        """Steps with a complete checkpoint, ascending."""
        return Run(self.path).checkpoints.steps()


Reader = Callable[[Path, dict[str, Any], int], tuple[Progress, Spent]]
"""Makes of a run's directory, its run.json and its number of steps how far it came and what it spent."""


def summarize(path: Path, training: Reader | None = None, ours: bool = False) -> Summary:
    """The summary of the run in `path`. UserError if `path` isn't a run, or one of its files is damaged.

    `training` reads the logs of a run that trains; without one all of their lines are read.
    `ours`: this process holds the run's lock, which asking for the holder would let go of.
    """
    Run(path)
    info, pid = _info(path), os.getpid() if ours else holder(path)
    if info["status"] in _AT_WORK and pid is None:
        info = _info(path)  # a run writes its last status before it lets go of the lock
    status = standing(info, pid)
    config, damage = read_config(path, info["kind"])
    if info["kind"] == "eval":
        progress, taken = _evaluation(path)
    else:
        progress, taken = (training or _training)(path, info, config.get("max_steps", 0))
    return Summary(path, info, config, status, pid, progress, taken, damage)


def standing(info: dict[str, Any], pid: int | None) -> str:
    """The status in run.json; `killed` if it says that a process is at work, but none (`pid` None) holds the run."""
    return KILLED if info["status"] in _AT_WORK and pid is None else info["status"]


def local_time(stamp: str | None) -> str:
    """An ISO time of a run's files in this machine's time zone, to the minute; empty for none."""
    return f"{time:%Y-%m-%d %H:%M}" if (time := parse_time(stamp)) else ""


def describe_event(event: dict[str, Any]) -> str:
    """An event in one line: time, what, at which step, and what else it says."""
    more = {name: value for name, value in event.items() if name not in ("kind", "step", "time")}
    at = f" at step {event['step']}" if event.get("step") is not None else ""
    text = f"{local_time(event.get('time'))}  {str(event.get('kind')).replace('_', ' ')}{at}"
    details = ", ".join(f"{name} {shortened(value)}" for name, value in more.items())
    return f"{text} ({details})" if details else text


def shortened(value: Any) -> str:
    """A value in at most 60 characters on one line, without control characters; cut behind a word, if it has any."""
    text = str(value).lower() if isinstance(value, bool) else "".join(c if c.isprintable() else " " for c in str(value))
    return text if len(text) <= 60 else f"{text[: max(text.rfind(' ', 30, 58), 0) or 57]}..."


def _info(path: Path) -> dict[str, Any]:
    info = existing_run(path)
    assert info is not None, "run.json disappeared"
    needed = _FACTS if info["kind"] == "eval" else _FACTS | _TRAINING_FACTS
    if missing := sorted(needed - info.keys()):
        raise UserError(f"{path / 'run.json'} is damaged ({missing[0]} is missing): {RESTORE}")
    return info


def _training(path: Path, info: dict[str, Any], max_steps: int) -> tuple[Progress, Spent]:
    timings = {record.get("step"): record for record in read_lines(path / "timings.jsonl")}
    progress = Progress(info["kind"], max_steps)
    for record in read_lines(path / "metrics.jsonl"):
        progress.update(record["step"], record, timings.get(record["step"], {}))
    return progress, spent(path, info)


def _evaluation(path: Path) -> tuple[Progress, Spent]:
    progress, file = Progress("eval", 0), path / "metadata.json"
    metadata = read_json(file) if os.path.lexists(file) else {}
    metrics, seconds = metadata.get("metrics", {}), metadata.get("seconds", {})
    for numbers in (metrics, seconds):
        if not isinstance(numbers, dict) or not all(map(is_number, numbers.values())):
            raise UserError(f"{file} is damaged (a number of the evaluation is none): {RESTORE}")
    progress.evals = metrics
    return progress, Spent(sum(value or 0.0 for value in seconds.values()))
