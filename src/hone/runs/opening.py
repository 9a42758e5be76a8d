"""Opening a run directory: a fresh start moves an earlier run aside, a resume rolls back to a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs import provenance, settings
from hone.runs.checkpoint import Checkpoints, Tensors
from hone.runs.files import write_json
from hone.runs.outputs import FORMAT, clear, run_info
from hone.runs.rollback import finish_roll_back, roll_back

Say = Callable[[str], None]


@dataclass
class Opened:
    """A directory that is ready to be written: its run.json, the first step to take, and the checkpoint to go on from.

    `differs` names what is not as it was when the run began, and so makes it another run than one that never stopped.
    """

    info: dict[str, Any]
    start_step: int = 0
    restored: tuple[Tensors, dict[str, Any]] | None = None
    differs: list[str] = field(default_factory=list)


def fresh(config: RunConfig, kind: str, command: list[str], say: Say) -> Opened:
    """Move an earlier run aside and write a new run.json."""
    folder = config.output_dir
    earlier = clear(folder)
    info: dict[str, Any] = {"format": FORMAT, "id": provenance.new_id(), "kind": kind, "status": "running"}
    info |= {"exact": True, "inexact": [], "seed": config.seed, "command": command}
    info |= {"started": provenance.now(), "ended": None, "pid": os.getpid(), "git": provenance.git()}
    info |= _machine() | {"resumes": [], "wandb_id": None}
    write_json(folder / "run.json", info)
    if earlier is not None:
        say(f"The earlier run in {folder} is now in {earlier}.")
    if config.resume is not None:
        say(f"There is nothing to resume in {folder}: starting at step 0.")
    return Opened(info)


def resumed(config: RunConfig, kind: str, command: list[str], say: Say) -> Opened:
    """Choose the checkpoint, roll back what came after it, and note the resume in run.json.

    UserError, with nothing moved, if the run is of another kind, or the checkpoint asked for is missing or damaged.
    """
    folder = config.output_dir
    info = run_info(folder)
    assert info is not None and config.resume is not None
    if info["kind"] != kind:
        raise UserError(
            f"{folder} holds a run of `hone {info['kind']}`, which `hone {kind}` can't resume: use another --output-dir"
        )
    finish_roll_back(folder)
    step, restored = _choose(Checkpoints(folder / "checkpoints"), config.resume.step, say)
    place = roll_back(folder, step)
    say(
        f"Resuming {folder} at step {step}."
        if restored
        else f"No checkpoint to resume in {folder}: starting at step 0."
    )
    if place is not None:
        say(f"What it had written after that is now in {place}.")
    machine = _machine()
    differs = settings.changed(folder / "config.toml", config) + _differences(info, machine)
    info["inexact"] = [entry for entry in info["inexact"] if entry["step"] < step or entry.get("lasting")]
    info["resumes"].append(
        {"step": step, "time": provenance.now(), "command": command, "git": provenance.git()} | machine
    )
    info |= {"status": "running", "ended": None, "pid": os.getpid(), "exact": not info["inexact"]}
    write_json(folder / "run.json", info)
    return Opened(info, step, restored, differs)


def _choose(
    checkpoints: Checkpoints, wanted: int | None, say: Say
) -> tuple[int, tuple[Tensors, dict[str, Any]] | None]:
    if wanted is None:
        wanted, warnings = checkpoints.newest()
        for warning in warnings:
            say(f"Warning: {warning}.")
        return (0, None) if wanted is None else (wanted, checkpoints.read(wanted))
    if wanted == 0 and not checkpoints.path(0).exists():
        return 0, None  # version 0 is the initial model, which needs no checkpoint
    if problems := checkpoints.problems(wanted):
        raise UserError(f"--resume.step {wanted}: {problems[0]}; {checkpoints.remedy(but=wanted)}")
    return wanted, checkpoints.read(wanted)


def _machine() -> dict[str, Any]:
    return {
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "threads": provenance.threads(),
    }


def _differences(info: dict[str, Any], machine: dict[str, Any]) -> list[str]:
    """Packages, processor, GPU and thread count that are not those of the first start, as `name (before, now)`."""
    pairs = {name: (info["versions"].get(name), now) for name, now in machine["versions"].items()}
    pairs |= {name: (info["hardware"].get(name), machine["hardware"][name]) for name in ("cpu", "gpu")}
    pairs["threads"] = (info["threads"], machine["threads"])
    return [f"{name} ({before}, now {now})" for name, (before, now) in pairs.items() if before != now]
