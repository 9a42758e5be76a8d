"""Opening a run directory: a fresh start moves an earlier run aside, a resume rolls back to a checkpoint."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.shared import ResumeConfig, RunConfig
from hone.errors import UserError
from hone.runs import predictions, provenance, settings
from hone.runs.budget import Budget, Spent, process_seconds, spent
from hone.runs.checkpoint import Checkpoints, Tensors, misfit, shapes
from hone.runs.files import read_lines, verify, whole_lines, write_json
from hone.runs.outputs import FORMAT, clear, run_info
from hone.runs.provenance import larger_budget, most_ranks, ranks_of, resume_command
from hone.runs.rollback import check_logs, copy_history, finish_roll_back, interrupted, roll_back
from hone.runs.rollouts import evals_file, rollouts_file
from hone.runs.settings import Change

if TYPE_CHECKING:
    import torch

Say = Callable[[str], None]
State = tuple[Tensors, dict[str, Any]]

_NEEDED = ("status", "exact", "inexact", "versions", "hardware", "threads", "resumes", "wandb_id")
"""What a resume reads from run.json, besides what makes it one of hone."""
_COPYING = "copying"
"""Status of a run that is being made from another one's checkpoint."""


@dataclass
class Start:
    """What a process brings to a run: its kind, the command that was typed, the model's parameters by name, the digests
    of what it reads besides the config (`sources`: the task, its data, the initial model, its tokenizer), and how many
    ranks train.
    """

    kind: str
    command: list[str]
    parameters: Mapping[str, torch.Tensor] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    with_tensors: bool = True
    """Whether the checkpoint's tensors are wanted, or its state only."""
    ranks: int = 1


@dataclass
class Opened:
    """A directory that is ready to be written: its run.json, the first step to take, and the checkpoint to go on from.

    `differs` names what is not as it was when the run began, and so makes it another run than one that never stopped.
    With `nothing_left` it is a finished run, in which nothing was changed. `spent` is what its processes spent so far.
    """

    info: dict[str, Any]
    start_step: int = 0
    restored: State | None = None
    differs: list[str] = field(default_factory=list)
    nothing_left: bool = False
    spent: Spent = field(default_factory=Spent)


def open_run(config: RunConfig, start: Start, say: Say) -> Opened:
    """Start afresh, resume, or go on from the checkpoint of another run, as the config says."""
    if (source := other_source(config)) is not None:
        return _branched(config, source, start, say)
    if config.resume is not None and run_info(config.output_dir) is not None:
        return _resumed(config, start, say)
    return _fresh(config, start, say)


def other_source(config: RunConfig) -> Path | None:
    """Return the directory of another run to go on from, if the config names one. UserError if it is its own."""
    source = config.resume.dir if config.resume else None
    if source is not None and source.resolve() == config.output_dir.resolve():
        raise UserError(
            f"--resume.dir {source} is the output directory itself: give the branch its own --output-dir, or leave out "
            "--resume.dir to go on in place"
        )
    return source


def _fresh(config: RunConfig, start: Start, say: Say) -> Opened:
    """Move an earlier run aside and write a new run.json."""
    info = _new_info(config, start)
    earlier = clear(config.output_dir)
    write_json(config.output_dir / "run.json", info)
    if earlier is not None:
        say(f"The earlier run in {config.output_dir} is now in {earlier}.")
    if config.resume is not None:
        say(f"There is nothing to resume in {config.output_dir}: starting at step 0.")
    return Opened(info)


def _new_info(config: RunConfig, start: Start) -> dict[str, Any]:
    info: dict[str, Any] = {"format": FORMAT, "id": provenance.new_id(), "kind": start.kind, "status": "running"}
    info |= {"numerics": provenance.NUMERICS, "exact": True, "inexact": []}
    info |= {"seed": config.seed, "command": start.command}
    info |= {"started": provenance.now(process_seconds()), "ended": None, "pid": os.getpid(), "git": provenance.git()}
    info |= _machine(start) | {"resumes": [], "wandb_id": None}
    return info | predictions.record(config, start.kind, info["id"])


def _resumed(config: RunConfig, start: Start, say: Say) -> Opened:
    """Choose the checkpoint, roll back what came after it, and note the resume in run.json.

    UserError, with nothing moved, if the run is of another kind, one of its files is damaged, something changed that
    decides its numbers, or the checkpoint is missing, damaged, past `max_steps` or of another model.
    """
    folder = config.output_dir
    info = _resumable_info(folder, start.kind)
    check_logs(folder)
    finish_roll_back(folder)
    step, restored = _chosen(folder, config, start, say)
    changes = checked_changes(folder, info, step, restored[1], config, start.sources) if restored else []
    predictions.resumed(info, folder, config)
    if _is_done(folder, info, config, step, restored is not None) and not changes:
        say(f"Nothing left to do in {folder}: all {config.max_steps} steps are done.")
        return Opened(info, config.max_steps, restored, nothing_left=True)
    before = spent(folder, info)
    if used_up := Budget(config.budget, before).used_up:
        assert config.budget is not None
        larger = resume_command(
            folder, start.kind, *larger_budget(config.budget.model_dump(), before), ranks=start.ranks
        )
        say(f"The budget is used up ({used_up}): nothing was done. Go on with a larger one: {larger}")
        return Opened(info, step, restored, nothing_left=True)
    _report(changes, say)
    if restored and (problems := _weights_problems(folder, step)):
        say(f"Warning: weights step_{step} are damaged ({problems[0]}) and are written anew.")
    place = roll_back(folder, step)
    if restored:
        say(f"Resuming {folder} at step {step}.")
    else:
        say(f"No checkpoint to resume in {folder}: starting at step 0.")
    if place is not None:
        say(f"What it had written after that is now in {place}.")
    return _note_resume(config, start, Opened(info, step, restored), changes, before)


def _is_done(folder: Path, info: dict[str, Any], config: RunConfig, step: int, restored: bool) -> bool:
    """Return True if the run is at its end, with its weights: at its last checkpoint, or with no checkpoint at all."""
    if info["status"] != "done" or _weights_problems(folder, config.max_steps):
        return False
    if restored:
        return step == config.max_steps
    assert config.resume is not None
    before = settings.settings_of(folder, config)
    return config.resume.step is None and not settings.changes(before, config, info.get("sources", {}))


def _branched(config: RunConfig, source: Path, start: Start, say: Say) -> Opened:
    """Begin a run that goes on from another run's checkpoint, with a copy of that run's history up to there."""
    if run_info(source) is None:
        raise UserError(f"--resume.dir {source} is not a run of hone: it has no run.json; name a run's directory")
    info = _resumable_info(source, start.kind)
    if (own := _branch_of(config, info)) is not None:
        say(f"{config.output_dir} branched from {source} at step {own}, and is resumed.")
        config = predictions.of_branch(config, info, own)
        return _resumed(config.model_copy(update={"resume": ResumeConfig()}), start, say)
    check_logs(source)
    if interrupted(source):
        command = resume_command(source, info["kind"], ranks=ranks_of(info))
        raise UserError(f"a resume of {source} was killed: finish it first, with: {command}")
    step, restored = _chosen(source, config, start, say)
    if restored is None:
        raise UserError(f"--resume.dir {source} has no checkpoint to go on from: it was run without --ckpt")
    changes = checked_changes(source, info, step, restored[1], config, start.sources)
    config = predictions.of_branch(config, info, step)
    own = _new_info(config, start)
    earlier = clear(config.output_dir)
    if earlier is not None:
        say(f"The earlier run in {config.output_dir} is now in {earlier}.")
    own |= {
        "status": _COPYING,
        "inexact": info["inexact"],
        "parent": {"id": info["id"], "dir": str(source), "step": step},
    }
    inherited = ("versions", "hardware", "threads", "variables", "sources", "drift")
    inherited += ("reward_weights", "reward_ranges", "correctness")
    own |= {name: info[name] for name in inherited if name in info}
    own.pop("ranks", None)  # of this process: the resume has them
    own |= {"ranks": most_ranks(info)} if most_ranks(info) > 1 else {}
    write_json(config.output_dir / "run.json", own)
    copy_history(source, config.output_dir, step)
    _report(changes, say)
    say(f"Going on from step {step} of {source}, in {config.output_dir}.")
    return _note_resume(config, start, Opened(own, step, restored), changes, spent(config.output_dir, own))


def _branch_of(config: RunConfig, source: dict[str, Any]) -> int | None:
    """Return the step at which the run in the output directory branched from this one, if it did, and as asked now.

    The command that made a branch can so be repeated, by a machine that starts it again whenever it was stopped.
    """
    own = run_info(config.output_dir) or {}
    parent = own.get("parent")
    assert config.resume is not None
    if parent is None or own["status"] == _COPYING or parent["id"] != source["id"]:
        return None
    return parent["step"] if config.resume.step in (None, parent["step"]) else None


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
    provenance.refuse_other_numerics(info, folder)
    if info["status"] == _COPYING:
        source = info["parent"]["dir"]
        raise UserError(f"copying {source} to {folder} was interrupted: begin again with --resume.dir {source}")
    return info


def _weights_problems(folder: Path, step: int) -> list[str]:
    path = folder / "weights" / f"step_{step}"
    return verify(path) if path.exists() else ["the folder is gone"]


def _note_resume(config: RunConfig, start: Start, opened: Opened, changes: list[Change], before: Spent) -> Opened:
    """Enter the resume in run.json. One that restores nothing begins anew: it is exact, whatever was before.

    `before` was read before the roll-back; the tokens of what it took away are not the run's any more.
    """
    step, info = opened.start_step, opened.info
    origin = {"command": start.command, "git": provenance.git()} | _machine(start)
    if opened.restored is None:
        info.pop("ranks", None)
        info.pop("untracked", None)
        info |= origin | {"seed": config.seed, "inexact": [], "drift": []}
    else:
        opened.differs = [str(change) for change in changes if not change.harmless]
        opened.differs += [f"{name} ({was}, now {now})" for name, was, now in differences(info, origin)]
        info["inexact"] = [entry for entry in info["inexact"] if entry["step"] < step]
        note_drift(info, step, changes)
        info["sources"] = info.get("sources", {}) | dict(start.sources)
    for reason in ("failure", "stopped_by"):
        info.pop(reason, None)
    info["resumes"].append({"step": step, "time": provenance.now()} | origin)
    info |= {"status": "running", "ended": None, "pid": os.getpid(), "exact": not info["inexact"]}
    write_json(config.output_dir / "run.json", info)
    left = spent(config.output_dir, info)
    opened.spent = replace(left, seconds=before.seconds, usd=before.usd, phases=before.phases)
    return opened


def _chosen(folder: Path, config: RunConfig, start: Start, say: Say) -> tuple[int, State | None]:
    """Return the checkpoint to go on from: (its step, its content), or (0, None) if there is none."""
    assert config.resume is not None
    step, restored = _choose(Checkpoints(folder / "checkpoints"), config.resume.step, start.with_tensors, say)
    if step > config.max_steps:
        raise UserError(
            f"checkpoint step_{step} is past max_steps = {config.max_steps}: set --max-steps above {step}, or "
            "--resume.step to an earlier checkpoint"
        )
    if restored and start.parameters is not None:
        tensors = restored[0] or {"model": shapes(Checkpoints(folder / "checkpoints").path(step))}
        if problem := misfit(tensors, start.parameters):
            raise UserError(
                f"checkpoint step_{step} is of another model ({problem}): resume with the model and precision that it "
                "was trained with"
            )
    return step, restored


def _choose(checkpoints: Checkpoints, wanted: int | None, with_tensors: bool, say: Say) -> tuple[int, State | None]:
    if wanted is None:
        wanted, warnings = checkpoints.newest()
        if warnings and wanted is None:
            raise UserError(f"{warnings[0]}, and there is no other: restore it, or --resume.step 0 begins anew")
        for warning in warnings:
            say(f"Warning: {warning}.")
        return (0, None) if wanted is None else (wanted, checkpoints.load(wanted, with_tensors))
    if wanted == 0 and not checkpoints.path(0).exists():
        return 0, None  # version 0 is the initial model, which needs no checkpoint
    if problems := checkpoints.problems(wanted):
        raise UserError(f"--resume.step {wanted}: {problems[0]}; {checkpoints.remedy(but=wanted)}")
    return wanted, checkpoints.load(wanted, with_tensors)


def _machine(start: Start) -> dict[str, Any]:
    untracked = provenance.untracked(start.command)
    return {
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "threads": provenance.threads(),
        **({"ranks": start.ranks} if start.ranks > 1 else {}),
        "variables": provenance.variables(),
        **({"untracked": untracked} if untracked else {}),
        "sources": {"code": provenance.code()} | dict(start.sources),
    }


def checked_changes(
    folder: Path,
    info: Mapping[str, Any],
    step: int,
    state: Mapping[str, Any],
    config: RunConfig,
    sources: Mapping[str, str],
) -> list[Change]:
    """Return what is not as it was in the run in `folder` when it came to `step`, whose checkpoint has this state.

    UserError if that would break exactness and was not allowed. A run that went on with other settings before may do so
    again, or be set back to those that it had at `step`.
    """
    edited = edited_history(folder, step, state)
    if edited and not config.allow_drift:
        raise UserError(
            f"{folder}: {', '.join(edited)} changed or went missing after checkpoint step_{step} was written, so the "
            "run would not be what its records tell: restore it, resume from an earlier step, or add --allow-drift"
        )
    now = settings.settings_of(folder, config), info.get("sources", {})
    then = settings_at(info, step, "settings", now[0]), settings_at(info, step, "sources", now[1])
    found = _changes(config, sources, *then)
    breaking = [change for change in _changes(config, sources, *now) if not change.harmless]
    if breaking and any(not change.harmless for change in found) and not config.allow_drift:
        raise UserError(
            f"resuming {folder} with another {', '.join(map(str, breaking))} would give numbers that no unbroken run "
            "has: set it back (the run's own settings are in its config.toml: @ "
            f"{folder / 'config.toml'}), or add --allow-drift"
        )
    return [Change(name, "recorded", "edited", kind="records") for name in edited] + found


def _changes(
    config: RunConfig, sources: Mapping[str, str], settings_before: Mapping[str, Any], sources_before: Mapping[str, str]
) -> list[Change]:
    """Return the settings and sources that are not as before."""
    both = [name for name in sources if name in sources_before and sources_before[name] != sources[name]]
    return settings.changes(settings_before, config, sources_before) + [
        Change(name, sources_before[name], sources[name], kind="sources") for name in both
    ]


def settings_at(info: Mapping[str, Any], step: int, kind: str, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `settings` (flat) or `sources` of a run as they were at `step`, from those that it has `now`.

    run.json lists, under `drift`, at which steps it went on with others, and what they were before.
    """
    found = dict(now)
    for entry in reversed(info.get("drift", [])):
        if entry["step"] >= step:
            found |= entry[kind]
    return {name: value for name, value in found.items() if value is not None}


def note_drift(info: dict[str, Any], step: int, changes: list[Change]) -> None:
    """Enter in run.json what was before, and forget what is rolled back."""
    entries = [entry for entry in info.get("drift", []) if entry["step"] < step]
    kinds = ("settings", "sources")
    before = {kind: {c.name: c.before for c in changes if c.kind == kind and not c.harmless} for kind in kinds}
    if any(before.values()):
        entries.append({"step": step} | before)
    info["drift"] = entries


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (name, before, now) of the facts in two run.json that can make equal runs differ.

    They are packages, hone's code, processor, GPU, ranks, threads, and variables that choose kernels. What one of the
    two doesn't know is left out.
    """
    pairs = [(name, value, now["versions"].get(name)) for name, value in before.get("versions", {}).items()]
    pairs += [(name, before["hardware"].get(name), now["hardware"].get(name)) for name in ("cpu", "gpu")]
    pairs += [("ranks", before.get("ranks", 1), now.get("ranks", 1))]
    pairs += [("threads", before.get("threads"), now.get("threads"))]
    if "variables" in before and "variables" in now:
        mine, theirs = before["variables"], now["variables"]
        pairs += [(name, mine.get(name), theirs.get(name)) for name in mine | theirs]
    mine, theirs = (facts.get("sources", {}).get("code") for facts in (before, now))
    if mine and theirs:
        pairs += [("hone's code", mine[:8], theirs[:8])]
    return [(name, one, other) for name, one, other in pairs if one != other]


def edited_history(folder: Path, step: int, state: Mapping[str, Any]) -> list[str]:
    """Return the logs that don't begin as they were when the checkpoint was written, and the missing files."""
    edited = []
    for name, was in state.get("logs", {}).items():
        lines = b"".join(whole_lines(folder / name))[: was["bytes"]]
        if len(lines) != was["bytes"] or hashlib.sha256(lines).hexdigest() != was["sha256"]:
            edited.append(name)
    before = [line for line in read_lines(folder / "hashes.jsonl") if line["step"] < step]
    names = [rollouts_file(line["step"]) for line in before if line["rollouts"]]
    names += [evals_file(line["step"]) for line in before if line.get("evals")]
    return edited + [name for name in names if not (folder / name).exists()]


def _report(changes: list[Change], say: Say) -> None:
    if changes:
        say(f"Changed since the run began: {', '.join(map(str, changes))}.")
