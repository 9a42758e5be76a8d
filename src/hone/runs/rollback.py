"""Rolling a run back to a checkpoint: later files move to `superseded/<n>/`.

Checkpoint N restores the state before step N. So metrics, timings, rollouts, evaluations and alarms of step N and later
are moved, and so are weights and checkpoints of versions after N. The plan is written first, and every move is a
rename, which can be repeated: after a crash, the next resume finishes the roll-back.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hone.extension import gathered
from hone.runs import view
from hone.runs.files import MARKER, dumps, new_dir, read_file, read_json, sweep, verify, whole_lines, write_file
from hone.runs.outputs import sweep_run

_RECORDED = frozenset(record.event for record in gathered("RECORDS", {}).values())
"""Kinds of events about the tables that extensions add to run.json."""
_HISTORY = _RECORDED | {"start", "audit", "resume", "restart", "stop", "checkpoint", "weights", "paused", "continued"}
"""Kinds of events about the process, or about the state before step N. Such events at step N are not moved."""
_PLAN = "rollback.json"


def finish_roll_back(folder: Path) -> None:
    """Complete an interrupted roll-back. Call it before choosing a checkpoint."""
    sweep_run(folder)
    for place in _places(folder):
        sweep(place)
        if not (place / _PLAN).exists():
            place.rmdir()  # nothing is moved before the plan is written
        elif not (plan := read_json(place / _PLAN))["done"]:
            _move(folder, place, plan["step"])


def interrupted(folder: Path) -> bool:
    """Return True if a roll-back was interrupted: the next resume finishes it."""
    plans = [place / _PLAN for place in _places(folder)]
    return any(not read_json(plan)["done"] for plan in plans if plan.exists())


def roll_back(folder: Path, step: int) -> Path | None:
    """Move what the run in `folder` wrote from step `step` on. Return the new folder, or None if there was nothing to
    move besides a stopped run's last line, which has the fingerprint of version `step`.
    """
    late = [line for name in view.LOGS for line in view.read_lines(folder / name) if _goes(name, line, step)]
    files = _later(folder, step)
    if not late and not files:
        return None
    place = folder / view.SUPERSEDED / str(max((int(path.name) for path in _places(folder)), default=0) + 1)
    place.mkdir(parents=True)
    _move(folder, place, step)
    only_fingerprint = not files and all("weights" in line and not line["metrics"] for line in late)
    return None if only_fingerprint else place


def copy_history(source: Path, target: Path, step: int) -> None:
    """Copy to `target` the history of the run in `source` before step `step`, and its checkpoint and weights of `step`.

    Records of extensions in run.json and damaged weights are not copied. The checkpoint is copied last.
    """
    for name in view.LOGS:
        pairs = zip(view.read_lines(source / name), whole_lines(source / name), strict=True)
        stays = (line for one, line in pairs if not _goes(name, one, step) and one.get("kind") not in _RECORDED)
        write_file(target / name, b"".join(stays))
    copied = [source / view.AUDIT] if (source / view.AUDIT).exists() else []
    copied += [path for name in view.OF_STEPS for at, path in view.steps_in(source / name).items() if at < step]
    for path in copied:
        (target / path.relative_to(source)).parent.mkdir(exist_ok=True)
        write_file(target / path.relative_to(source), read_file(path))
    for name in (view.WEIGHTS, view.CHECKPOINTS):
        saved = source / name / f"step_{step}"
        if not verify(saved):
            with new_dir(target / name / f"step_{step}") as folder:
                shutil.copytree(saved, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MARKER))


def move_lines(path: Path, goes: Callable[[dict[str, Any]], bool], moved_to: Path) -> None:
    """Move the lines with a true `goes(record)` to the file `moved_to`. A crash loses no line; call this again."""
    staying, removed = [], []
    for number, line in enumerate(whole_lines(path), 1):
        (removed if goes(view.read_record(path, number, line)) else staying).append(line)
    if removed:
        write_file(moved_to, b"".join(removed))
        write_file(path, b"".join(staying))


def _places(folder: Path) -> list[Path]:
    found = [path for path in (folder / view.SUPERSEDED).glob("*") if path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name))


def _goes(log: str, record: dict[str, Any], step: int) -> bool:
    at = record.get("step")
    if at is None or at < step:
        return False
    return at > step or log != view.EVENTS or record.get("kind") not in _HISTORY


def _later(folder: Path, step: int) -> list[Path]:
    """Return the files to roll back, besides lines of logs. Checkpoints come first: none outlives its history."""
    gone = [path for name in view.OF_VERSIONS for at, path in view.steps_in(folder / name).items() if at > step]
    gone += [path for name in view.OF_STEPS for at, path in view.steps_in(folder / name).items() if at >= step]
    weights = folder / view.WEIGHTS / f"step_{step}"
    return [*gone, weights] if weights.exists() and verify(weights) else gone  # a resume from there writes it anew


def _move(folder: Path, place: Path, step: int) -> None:
    write_file(place / _PLAN, dumps({"step": step, "done": False}) + "\n")
    for path in _later(folder, step):
        target = place / path.relative_to(folder)
        target.parent.mkdir(exist_ok=True)
        os.rename(path, target)
    for name in view.LOGS:
        move_lines(folder / name, lambda record, name=name: _goes(name, record, step), moved_to=place / name)
    write_file(place / _PLAN, dumps({"step": step, "done": True}) + "\n")
