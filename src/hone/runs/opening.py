"""Opening a run directory: a fresh start moves an earlier run aside, a resume rolls back to a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs import provenance, settings
from hone.runs.checkpoint import Checkpoints, Tensors, misfit
from hone.runs.files import is_complete, write_json
from hone.runs.outputs import FORMAT, clear, run_info
from hone.runs.rollback import check_logs, finish_roll_back, roll_back

if TYPE_CHECKING:
    import torch

Say = Callable[[str], None]

_NEEDED = ("status", "exact", "inexact", "versions", "hardware", "threads", "resumes", "wandb_id")
"""What a resume reads from run.json, besides what makes it one of hone."""


@dataclass
class Opened:
    """A directory that is ready to be written: its run.json, the first step to take, and the checkpoint to go on from.

    `differs` names what is not as it was when the run began, and so makes it another run than one that never stopped.
    With `nothing_left` it is a finished run, in which nothing was changed.
    """

    info: dict[str, Any]
    start_step: int = 0
    restored: tuple[Tensors, dict[str, Any]] | None = None
    differs: list[str] = field(default_factory=list)
    nothing_left: bool = False


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


def resumed(
    config: RunConfig, kind: str, command: list[str], say: Say, parameters: Mapping[str, torch.Tensor] | None
) -> Opened:
    """Choose the checkpoint, roll back what came after it, and note the resume in run.json.

    UserError, with nothing moved, if the run is of another kind, one of its files is damaged, or the checkpoint is
    missing, damaged, past `max_steps` or of another model than the one with these `parameters`.
    """
    folder = config.output_dir
    info = _resumable_info(folder, kind)
    changed = settings.changed(folder / "config.toml", config)
    check_logs(folder)
    finish_roll_back(folder)
    assert config.resume is not None
    step, restored = _choose(Checkpoints(folder / "checkpoints"), config.resume.step, say)
    if step > config.max_steps:
        raise UserError(
            f"checkpoint step_{step} is past max_steps = {config.max_steps}: set --max-steps above {step}, or "
            "--resume.step to an earlier checkpoint"
        )
    if restored and parameters is not None and (problem := misfit(restored[0], parameters)):
        raise UserError(
            f"checkpoint step_{step} is of another model ({problem}): resume with the model and precision that it was "
            "trained with"
        )
    if info["status"] == "done" and step == config.max_steps and not changed and _has_weights(folder, step):
        say(f"Nothing left to do in {folder}: all {step} steps are done.")
        return Opened(info, step, restored, nothing_left=True)
    _roll_back(folder, step, restored is not None, say)
    return _note_resume(config, command, info, step, restored, changed)


def _resumable_info(folder: Path, kind: str) -> dict[str, Any]:
    info = run_info(folder)
    assert info is not None, "the caller has seen it"
    if info["kind"] != kind:
        raise UserError(
            f"{folder} holds a run of `hone {info['kind']}`, which `hone {kind}` can't resume: use another --output-dir"
        )
    if missing := [name for name in _NEEDED if name not in info]:
        raise UserError(
            f"{folder / 'run.json'} is damaged ({missing[0]} is missing): mend it, or choose another --output-dir"
        )
    return info


def _has_weights(folder: Path, step: int) -> bool:
    return is_complete(folder / "weights" / f"step_{step}")


def _roll_back(folder: Path, step: int, restored: bool, say: Say) -> None:
    place = roll_back(folder, step)
    if restored:
        say(f"Resuming {folder} at step {step}.")
    else:
        say(f"No checkpoint to resume in {folder}: starting at step 0.")
    if place is not None:
        say(f"What it had written after that is now in {place}.")


def _note_resume(
    config: RunConfig,
    command: list[str],
    info: dict[str, Any],
    step: int,
    restored: tuple[Tensors, dict[str, Any]] | None,
    changed: list[str],
) -> Opened:
    """Enter the resume in run.json. One that restores nothing begins anew: it is exact, whatever was before."""
    origin = {"command": command, "git": provenance.git()} | _machine()
    if restored is None:
        differs = []
        info |= origin | {"seed": config.seed, "inexact": []}
    else:
        differs = changed + _differences(info, origin)
        info["inexact"] = [entry for entry in info["inexact"] if entry["step"] < step or entry.get("lasting")]
    info["resumes"].append({"step": step, "time": provenance.now()} | origin)
    info |= {"status": "running", "ended": None, "pid": os.getpid(), "exact": not info["inexact"]}
    write_json(config.output_dir / "run.json", info)
    return Opened(info, step, restored, differs)


def _choose(
    checkpoints: Checkpoints, wanted: int | None, say: Say
) -> tuple[int, tuple[Tensors, dict[str, Any]] | None]:
    if wanted is None:
        wanted, warnings = checkpoints.newest()
        for warning in warnings:
            say(f"Warning: {warning}.")
        return (0, None) if wanted is None else (wanted, checkpoints.load(wanted))
    if wanted == 0 and not checkpoints.path(0).exists():
        return 0, None  # version 0 is the initial model, which needs no checkpoint
    if problems := checkpoints.problems(wanted):
        raise UserError(f"--resume.step {wanted}: {problems[0]}; {checkpoints.remedy(but=wanted)}")
    return wanted, checkpoints.load(wanted)


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
