"""Opening a run directory: a new run moves an earlier one aside, a resume rolls back to a checkpoint, and a branch
copies what another run had written up to its checkpoint.
"""

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
from hone.runs.outputs import FORMAT, check_output, clear, existing_run, run_info
from hone.runs.provenance import larger_budget, most_ranks, ranks_of, resume_command
from hone.runs.rollback import LOGS, copy_history, finish_roll_back, interrupted, roll_back
from hone.runs.rollouts import evals_file, rollouts_file
from hone.runs.settings import Change

if TYPE_CHECKING:
    import torch

State = tuple[Tensors, dict[str, Any]]

_COPYING = "copying"
"""Status of a run that is being made from another one's checkpoint."""
_INHERITED = ("versions", "hardware", "threads", "variables", "sources", "drift")
_INHERITED += ("reward_weights", "reward_ranges", "correctness")
"""What a branch's run.json has from the run that it goes on from: it says how the steps up to there were made."""


@dataclass
class Start:
    """What a process brings to a run: its kind, the command that was typed, the model's parameters by name, the digests
    of what it reads besides the config (`sources`: the task, its data, the initial model, its tokenizer), how many
    ranks train, and `say`, which shows a line to the user.
    """

    kind: str
    command: list[str]
    say: Callable[[str], None]
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


def check(config: RunConfig, protect: list[Path]) -> bool:
    """Return True if the config asks to go on with a run. UserError, with nothing touched, if the run can't be put into
    its directory: what would be moved is foreign, or one of `protect` (paths that the run reads).
    """
    folder, source = config.output_dir, _other_source(config)
    if config.resume is not None and source is None:
        if existing_run(folder, "mend it, or choose another --output-dir") is not None:
            return True
        if config.resume.step:
            raise UserError(f"--resume.step {config.resume.step}: there is no run in {folder} to resume")
    check_output(folder, [*protect, *([source] if source else [])])
    return source is not None


def open_run(config: RunConfig, start: Start) -> Opened:
    """Start a new run, resume, or go on from the checkpoint of another run, as the config says.

    UserError, with nothing moved, if the run to go on from is of another kind, one of its files is damaged, something
    changed that decides its numbers, or the checkpoint is missing, damaged, past `max_steps` or of another model.
    """
    folder, source = config.output_dir, _other_source(config)
    if source is not None:
        if run_info(source) is None:
            raise UserError(f"--resume.dir {source} is not a run of hone: it has no run.json; name a run's directory")
        return _branch(config, source, start)
    if config.resume is not None and run_info(folder) is not None:
        return _resume(config, start)
    info = _new_info(config, start)
    _clear(folder, start)
    write_json(folder / "run.json", info)
    if config.resume is not None:
        start.say(f"There is nothing to resume in {folder}: starting at step 0.")
    return Opened(info)


def _other_source(config: RunConfig) -> Path | None:
    """Return the directory of another run to go on from, if the config names one. UserError if it is its own."""
    source = config.resume.dir if config.resume else None
    if source is not None and source.resolve() == config.output_dir.resolve():
        raise UserError(
            f"--resume.dir {source} is the output directory itself: give the branch its own --output-dir, or leave out "
            "--resume.dir to go on in place"
        )
    return source


def _clear(folder: Path, start: Start) -> None:
    if (earlier := clear(folder)) is not None:
        start.say(f"The earlier run in {folder} is now in {earlier}.")


def _new_info(config: RunConfig, start: Start) -> dict[str, Any]:
    info: dict[str, Any] = {"format": FORMAT, "id": provenance.new_id(), "kind": start.kind, "status": "running"}
    info |= {"numerics": provenance.NUMERICS, "exact": True, "inexact": []}
    info |= {"seed": config.seed, "command": start.command}
    info |= {"started": provenance.now(process_seconds()), "ended": None, "pid": os.getpid(), "git": provenance.git()}
    info |= _machine(start) | {"resumes": [], "wandb_id": None}
    return info | predictions.record(config, start.kind, info["id"])


def _machine(start: Start) -> dict[str, Any]:
    return {
        "versions": provenance.versions(),
        "hardware": provenance.hardware(),
        "threads": provenance.threads(),
        **({"ranks": start.ranks} if start.ranks > 1 else {}),
        "variables": provenance.variables(),
        "sources": {"code": provenance.code()} | dict(start.sources),
    }


def _resume(config: RunConfig, start: Start) -> Opened:
    """Choose the checkpoint, roll back what came after it, and note the resume in run.json."""
    folder, say = config.output_dir, start.say
    info = _resumable_info(folder, start.kind)
    finish_roll_back(folder)
    if _is_done(folder, info, config, start):
        say(f"Nothing left to do in {folder}: all {config.max_steps} steps are done.")
        return Opened(info, config.max_steps, nothing_left=True)
    step, restored = _checkpoint(folder, config, start)
    changes = _checked_changes(folder, info, step, restored, config, start)
    predictions.resumed(info, folder, config)
    before = spent(folder, info)
    if config.budget is not None and (used_up := Budget(config.budget, before).used_up):
        more = larger_budget(config.budget.model_dump(), before)
        larger = resume_command(folder, start.kind, *more, ranks=start.ranks)
        say(f"The budget is used up ({used_up}): nothing was done. Go on with a larger one: {larger}")
        return Opened(info, step, nothing_left=True)
    _report(changes, start)
    if restored and (problems := _weights_problems(folder, step)):
        say(f"Warning: weights step_{step} are damaged ({problems[0]}) and are written anew.")
    place = roll_back(folder, step)
    say(
        f"Resuming {folder} at step {step}."
        if restored
        else f"No checkpoint to resume in {folder}: starting at step 0."
    )
    if place is not None:
        say(f"What it had written after that is now in {place}.")
    return _note_resume(config, start, Opened(info, step, restored), changes, before)


def _branch(config: RunConfig, source: Path, start: Start) -> Opened:
    """Begin a run that goes on from another run's checkpoint, with a copy of that run's history up to there.

    The command that made a branch can be repeated, by a machine that starts it again whenever it was stopped: then the
    branch is resumed.
    """
    folder, wanted = config.output_dir, config.resume and config.resume.step
    info = _resumable_info(source, start.kind)
    own = run_info(folder) or {}
    parent = own.get("parent", {})
    if parent.get("id") == info["id"] and own["status"] != _COPYING and wanted in (None, parent["step"]):
        start.say(f"{folder} branched from {source} at step {parent['step']}, and is resumed.")
        config = predictions.of_branch(config, info, parent["step"])
        return _resume(config.model_copy(update={"resume": ResumeConfig()}), start)
    if interrupted(source):
        command = resume_command(source, info["kind"], ranks=ranks_of(info))
        raise UserError(f"a resume of {source} was killed: finish it first, with: {command}")
    step, restored = _checkpoint(source, config, start)
    if restored is None:
        raise UserError(f"--resume.dir {source} has no checkpoint to go on from: it was run without --ckpt")
    changes = _checked_changes(source, info, step, restored, config, start)
    config = predictions.of_branch(config, info, step)
    own = _new_info(config, start)
    _clear(folder, start)
    own |= {name: info[name] for name in _INHERITED if name in info}
    own |= {"status": _COPYING, "inexact": info["inexact"]}
    own["parent"] = {"id": info["id"], "dir": str(source), "step": step}
    own.pop("ranks", None)  # of this process: the resume has them
    own |= {"ranks": most_ranks(info)} if most_ranks(info) > 1 else {}
    write_json(folder / "run.json", own)
    copy_history(source, folder, step)
    _report(changes, start)
    start.say(f"Going on from step {step} of {source}, in {folder}.")
    return _note_resume(config, start, Opened(own, step, restored), changes, spent(folder, own))


def _resumable_info(folder: Path, kind: str) -> dict[str, Any]:
    """Return the run.json of a run that this command can go on with, and whose logs can be read; UserError if not."""
    info = run_info(folder)
    assert info is not None, "the caller has seen it"
    if info["kind"] != kind:
        raise UserError(
            f"{folder} holds a run of `hone {info['kind']}`, which `hone {kind}` can't resume: use another --output-dir"
        )
    provenance.refuse_other_numerics(info, folder)
    if info["status"] == _COPYING:
        source = info["parent"]["dir"]
        raise UserError(f"copying {source} to {folder} was interrupted: begin again with --resume.dir {source}")
    for name in LOGS:
        read_lines(folder / name)
    return info


def _checkpoint(folder: Path, config: RunConfig, start: Start) -> tuple[int, State | None]:
    """Return the checkpoint to go on from: (its step, its content), or (0, None) if there is none."""
    assert config.resume is not None
    checkpoints, step = Checkpoints(folder / "checkpoints"), config.resume.step
    if step is None:
        step, warnings = checkpoints.newest()
        if warnings and step is None:
            raise UserError(f"{warnings[0]}, and there is no other: restore it, or --resume.step 0 begins anew")
        for warning in warnings:
            start.say(f"Warning: {warning}.")
    elif step == 0 and not checkpoints.path(0).exists():
        step = None  # version 0 is the initial model, which needs no checkpoint
    elif problems := checkpoints.problems(step):
        raise UserError(f"--resume.step {step}: {problems[0]}; {checkpoints.remedy(but=step)}")
    if step is None:
        return 0, None
    if step > config.max_steps:
        raise UserError(
            f"checkpoint step_{step} is past max_steps = {config.max_steps}: set --max-steps above {step}, or "
            "--resume.step to an earlier checkpoint"
        )
    tensors, state = checkpoints.load(step, start.with_tensors)
    if start.parameters is not None:
        model = tensors["model"] if tensors else shapes(checkpoints.path(step))
        if problem := misfit(model, start.parameters):
            raise UserError(
                f"checkpoint step_{step} is of another model ({problem}): resume with the model and precision that it "
                "was trained with"
            )
    return step, (tensors, state)


def _is_done(folder: Path, info: dict[str, Any], config: RunConfig, start: Start) -> bool:
    """Return True if the run is at its end, with its weights, and is asked for nothing else."""
    step = config.resume and config.resume.step
    if info["status"] != "done" or step not in (None, config.max_steps) or _weights_problems(folder, config.max_steps):
        return False
    return not _changes(config, start.sources, settings.settings_of(folder, config), info.get("sources", {}))


def _weights_problems(folder: Path, step: int) -> list[str]:
    path = folder / "weights" / f"step_{step}"
    return verify(path) if path.exists() else ["the folder is gone"]


def _note_resume(config: RunConfig, start: Start, opened: Opened, changes: list[Change], before: Spent) -> Opened:
    """Enter the resume in run.json. One that restores nothing begins anew: it is exact, whatever was before.

    `before` was read before the roll-back; the tokens of what it took away are not the run's any more.
    """
    step, info = opened.start_step, opened.info
    origin = {"command": start.command, "git": provenance.git()} | _machine(start)
    for name in ("failure", "stopped_by", *(("ranks",) if opened.restored is None else ())):
        info.pop(name, None)
    if opened.restored is None:
        info |= origin | {"seed": config.seed, "inexact": [], "drift": []}
    else:
        opened.differs = [str(change) for change in changes if not change.harmless]
        opened.differs += [f"{name} ({was}, now {now})" for name, was, now in differences(info, origin)]
        info["inexact"] = [entry for entry in info["inexact"] if entry["step"] < step]
        info["drift"] = [entry for entry in info.get("drift", []) if entry["step"] < step]
        drift = {
            kind: {c.name: c.before for c in changes if c.kind == kind and not c.harmless}
            for kind in ("settings", "sources")
        }
        if any(drift.values()):
            info["drift"].append({"step": step} | drift)
        info["sources"] = info.get("sources", {}) | dict(start.sources)
    info["resumes"].append({"step": step, "time": provenance.now()} | origin)
    info |= {"status": "running", "ended": None, "pid": os.getpid(), "exact": not info["inexact"]}
    write_json(config.output_dir / "run.json", info)
    left = spent(config.output_dir, info)
    opened.spent = replace(left, seconds=before.seconds, usd=before.usd, phases=before.phases)
    return opened


def _report(changes: list[Change], start: Start) -> None:
    if changes:
        start.say(f"Changed since the run began: {', '.join(map(str, changes))}.")


def _checked_changes(
    folder: Path, info: Mapping[str, Any], step: int, restored: State | None, config: RunConfig, start: Start
) -> list[Change]:
    """Return what is not as it was in the run in `folder` when it came to `step`; nothing, if nothing is restored.

    UserError if that would break exactness and was not allowed. A run that went on with other settings before may do so
    again, or be set back to those that it had at `step`.
    """
    if restored is None:
        return []
    edited = _edited_history(folder, step, restored[1])
    if edited and not config.allow_drift:
        raise UserError(
            f"{folder}: {', '.join(edited)} changed or went missing after checkpoint step_{step} was written, so the "
            "run would not be what its records tell: restore it, resume from an earlier step, or add --allow-drift"
        )
    now = settings.settings_of(folder, config), info.get("sources", {})
    then = dict(now[0]), dict(now[1])
    for entry in reversed(info.get("drift", [])):  # at which steps it went on with others, and what was before
        if entry["step"] >= step:
            then[0].update(entry["settings"])
            then[1].update(entry["sources"])
    found = _changes(config, start.sources, *then)
    breaking = [change for change in _changes(config, start.sources, *now) if not change.harmless]
    if breaking and any(not change.harmless for change in found) and not config.allow_drift:
        raise UserError(
            f"resuming {folder} with another {', '.join(map(str, breaking))} would give numbers that no unbroken run "
            "has: set it back (the run's own settings are in its config.toml: @ "
            f"{folder / 'config.toml'}), or add --allow-drift"
        )
    return [Change(name, "recorded", "edited", kind="records") for name in edited] + found


def _changes(
    config: RunConfig, sources: Mapping[str, str], settings_before: Mapping[str, Any], sources_before: Mapping[str, Any]
) -> list[Change]:
    """Return the settings and sources that are not as before."""
    return settings.changes(settings_before, config, sources_before) + [
        Change(name, sources_before[name], now, kind="sources")
        for name, now in sources.items()
        if sources_before.get(name, now) != now
    ]


def _edited_history(folder: Path, step: int, state: Mapping[str, Any]) -> list[str]:
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
