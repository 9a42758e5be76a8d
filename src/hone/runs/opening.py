"""Opening a run directory: a new run moves an earlier one aside, a resume rolls back to a checkpoint, and a branch
copies another run's history up to its checkpoint.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.shared import ResumeConfig, RunConfig
from hone.errors import UserError
from hone.runs import provenance, settings, view
from hone.runs.budget import Budget, Spent, process_seconds, spent
from hone.runs.checkpoint import Checkpoints, Tensors, misfit, shapes
from hone.runs.files import RESTORE, verify, whole_lines, write_json
from hone.runs.outputs import Lock, check_free_names, check_output, clear
from hone.runs.provenance import larger_budget, most_ranks, resume_command
from hone.runs.settings import Change

if TYPE_CHECKING:
    import torch

_COPYING = "copying"
"""Status of a run that is being copied from another run's checkpoint."""
_NEEDED = ("status", "inexact", "versions", "hardware", "threads", "resumes")
"""Keys of run.json that a resume needs."""
_INHERITED = ("versions", "hardware", "threads", "variables", "sources", "drift")
_INHERITED += ("inexact", "reward_weights", "reward_ranges", "correctness")
"""Keys that a branch's run.json takes from its parent run: they describe how the copied steps were made."""


@dataclass
class Opening:
    """A run directory that is being opened.

    Given are the config, the `kind` of run (sft, rl), the typed command, `say` (shows a line to the user), the model's
    `parameters` by name, digests of the `sources` besides the config, and the number of `ranks`. If `with_tensors` is
    false, only the checkpoint's state is loaded.

    `open` sets the rest: run.json (`info`), the first step to take, (tensors, state) to continue from (`restored`), the
    cost so far (`spent`). `differs` lists changes that make results differ from an uninterrupted run. `nothing_left` is
    true if no step is left, `lost_checkpoint` if a checkpoint newer than the loaded one is damaged.
    """

    config: RunConfig
    kind: str
    command: list[str]
    say: Callable[[str], None]
    parameters: Mapping[str, torch.Tensor] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    with_tensors: bool = True
    ranks: int = 1

    info: dict[str, Any] = field(default_factory=dict)
    start_step: int = 0
    restored: tuple[Tensors, dict[str, Any]] | None = None
    differs: list[str] = field(default_factory=list)
    nothing_left: bool = False
    lost_checkpoint: bool = False
    spent: Spent = field(default_factory=Spent)

    def __post_init__(self) -> None:
        self.folder = self.config.output_dir
        self.resume = self.config.resume or ResumeConfig()
        self.source = self.resume.dir or self.folder
        """Folder of the run to continue."""
        self.branches = self.resume.dir is not None
        if self.branches and self.source.resolve() == self.folder.resolve():
            raise UserError(
                f"--resume.dir {self.source} is the output directory itself: give the branch its own --output-dir, or "
                "leave out --resume.dir to go on in place"
            )

    def check(self, protect: Sequence[Path], keep: Iterable[str]) -> bool:
        """Return True if the config resumes or branches a run. Raises UserError, with nothing touched, if another
        process writes to the output directory, or if this directory holds foreign files, a path of `protect` (which the
        run reads), or a file named in `keep`.
        """
        check_free_names(self.folder, keep)
        if (self.folder / view.LOCK).exists():
            Lock(self.folder).release()
        if self.config.resume is not None and not self.branches:
            if view.existing_run(self.folder, "fix it, or choose another --output-dir") is not None:
                self._resumable_info()
                return True
            if self.resume.step:
                raise UserError(f"--resume.step {self.resume.step}: there is no run in {self.folder} to resume")
        check_output(self.folder, [*protect, *([self.source] if self.branches else [])])
        if self.branches:
            self._resumable_info()
        return self.branches

    def open(self) -> None:
        """Start a new run, resume one, or branch from another run's checkpoint, as the config says.

        Raises UserError, with nothing moved, if the run is of another kind, a file is damaged, settings or sources
        differ, or the checkpoint is missing, damaged, past `max_steps` or of another model.
        """
        if self.branches:
            self._branch()
        elif self.config.resume is not None and view.run_info(self.folder) is not None:
            self._resume()
        else:
            self._begin()
            if self.config.resume is not None:
                self.say(f"There is nothing to resume in {self.folder}: starting at step 0.")

    def _begin(self, **facts: Any) -> None:
        info: dict[str, Any] = dict(format=view.FORMAT, id=provenance.new_id(), kind=self.kind, status="running")
        info |= {"numerics": provenance.NUMERICS, "exact": True, "inexact": []}
        info |= {"seed": self.config.seed, "command": self.command}
        info |= {"started": provenance.now(process_seconds()), "ended": None, "pid": os.getpid()}
        info |= self._machine() | {"resumes": [], "wandb_id": None}
        self.info = info | facts
        if (earlier := clear(self.folder)) is not None:
            self.say(f"The earlier run in {self.folder} is now in {earlier}.")
        write_json(self.folder / view.INFO, self.info)

    def _machine(self) -> dict[str, Any]:
        return {
            "git": provenance.git(),
            "versions": provenance.versions(),
            "hardware": provenance.hardware(),
            "threads": provenance.threads(),
            **({"ranks": self.ranks} if self.ranks > 1 else {}),
            "variables": provenance.variables(),
            "sources": {"code": provenance.code()} | dict(self.sources),
        }

    def _resume(self) -> None:
        from hone.runs.rollback import finish_roll_back, roll_back

        folder, config = self.folder, self.config
        info = self.info = self._resumable_info()
        finish_roll_back(folder)
        self._load_checkpoint()
        changes = self._checked_changes(info)
        self._check_fits()
        if (last := self._last_step()) is not None and not changes:
            why = f"all {last} steps are done" if last == config.max_steps else target_in_words(info)
            self.say(f"Nothing left to do in {folder}: {why}.")
            self.start_step, self.nothing_left = last, True
            return
        budget = Budget(config.budget, before := spent(folder, info))
        if config.budget is not None and budget.used_up:
            larger = resume_command(folder, info, *larger_budget(config.budget.model_dump(), before))
            self.say(f"The budget is used up ({budget.used_up}): nothing was done. Go on with a larger one: {larger}")
            self.nothing_left = True
            return
        step = self.start_step
        if self.restored and (problems := self._weights_problems(step)):
            self.say(f"Warning: weights step_{step} are damaged ({problems[0]}) and are written anew.")
        place = roll_back(folder, step)
        resuming = f"Resuming {folder} at step {step}."
        self.say(resuming if self.restored else f"No checkpoint to resume in {folder}: starting at step 0.")
        if place is not None:
            self.say(f"Later files of this run are now in {place}.")
        self._note_resume(changes)

    def _branch(self) -> None:
        """Copy another run's history up to its checkpoint, and go on. The same command then resumes the copy."""
        from hone.runs.rollback import copy_history, interrupted

        folder, source = self.folder, self.source
        info = self._resumable_info()
        if parent := parent_of(view.run_info(folder), info, self.resume.step):
            self.say(f"{folder} branched from {source} at step {parent['step']}, and is resumed.")
            self.source, self.resume = folder, ResumeConfig()
            self._resume()
            return
        if interrupted(source):
            command = resume_command(source, info)
            raise UserError(f"a resume of {source} was killed: finish it first, with: {command}")
        self._load_checkpoint()
        if self.restored is None:
            raise UserError(f"--resume.dir {source} has no checkpoint to go on from: it was run without --ckpt")
        step, changes = self.start_step, self._checked_changes(info)
        self._check_fits()
        inherited = {name: info[name] for name in _INHERITED if name in info}
        parent = {"id": info["id"], "dir": str(source), "step": step}
        self._begin(**inherited, status=_COPYING, parent=parent, ranks=most_ranks(info))
        copy_history(source, folder, step)
        self.say(f"Going on from step {step} of {source}, in {folder}.")
        self._note_resume(changes)

    def _resumable_info(self) -> dict[str, Any]:
        """Return run.json of the run to continue. Raises UserError if this command can't resume it or read its logs."""
        source, info = self.source, view.run_info(self.source)
        if info is None:
            raise UserError(f"--resume.dir {source} is not a run of hone: it has no run.json; name a run's directory")
        if info["kind"] != self.kind:
            raise UserError(
                f"{source} holds a run of `hone {info['kind']}`, which `hone {self.kind}` can't resume: use another "
                "--output-dir"
            )
        if missing := [name for name in _NEEDED if name not in info]:
            raise UserError(f"{source / view.INFO} is damaged ({missing[0]} is missing): {RESTORE}")
        provenance.refuse_other_numerics(info, source)
        if info["status"] == _COPYING:
            parent = info["parent"]["dir"]
            raise UserError(f"copying {parent} to {source} was interrupted: begin again with --resume.dir {parent}")
        for name in view.LOGS:
            view.read_lines(source / name)
        return info

    def _load_checkpoint(self) -> None:
        checkpoints, step = Checkpoints(self.source / view.CHECKPOINTS), self.resume.step
        if step is None:
            step, warnings = checkpoints.newest()
            if warnings and step is None:
                raise UserError(f"{warnings[0]}, and there is no other: restore it, or begin anew with --resume.step 0")
            for warning in warnings:
                self.say(f"Warning: {warning}.")
            self.lost_checkpoint = bool(warnings)
        elif step == 0 and not checkpoints.path(0).exists():
            step = None  # version 0 is the initial model, which needs no checkpoint
        elif problems := checkpoints.problems(step):
            raise UserError(f"--resume.step {step}: {problems[0]}; {checkpoints.remedy(but=step)}")
        if step is None:
            return
        if step > self.config.max_steps:
            raise UserError(
                f"checkpoint step_{step} is past max_steps = {self.config.max_steps}: set --max-steps above {step}, or "
                "--resume.step to an earlier checkpoint"
            )
        self.start_step, self.restored = step, checkpoints.load(step, self.with_tensors)

    def _check_fits(self) -> None:
        if self.restored is None or self.parameters is None:
            return
        path = Checkpoints(self.source / view.CHECKPOINTS).path(self.start_step)
        tensors = self.restored[0]
        if problem := misfit(tensors["model"] if tensors else shapes(path), self.parameters):
            raise UserError(
                f"checkpoint step_{self.start_step} is of another model ({problem}): resume with the model, LoRA rank "
                "and precision that it was trained with"
            )

    def _last_step(self) -> int | None:
        """Return the last version if the run is finished and the weights of this version are saved, even if the
        checkpoint is older. Else return None, also if a newer checkpoint is damaged or the user chose an older one.
        """
        last, target, stop = self.config.max_steps, self.info.get("target"), self.config.stop
        if target and stop and stop.metric == target["metric"] and stop.reached(target["value"]):
            last = max(view.steps_in(self.folder / view.WEIGHTS), default=last)
        if self.info["status"] != "done" or self.lost_checkpoint or self._weights_problems(last):
            return None
        if self.restored is not None:
            return last if self.resume.step in (None, last) else None
        before = settings.settings_of(self.folder, self.config)
        same = self.resume.step is None and not self._changes(before, self.info.get("sources", {}))
        return last if same else None

    def _weights_problems(self, step: int) -> list[str]:
        path = self.folder / view.WEIGHTS / f"step_{step}"
        return verify(path) if path.exists() else ["the folder is gone"]

    def _note_resume(self, changes: list[Change]) -> None:
        """Record the resume in run.json. Without a restored checkpoint, the run starts over and is exact."""
        step, info = self.start_step, self.info
        if changes:
            self.say(f"Changed since the run began: {', '.join(map(str, changes))}.")
        origin = {"command": self.command} | self._machine()
        for name in ("failure", "stopped_by", "target", *(("ranks",) if self.restored is None else ())):
            info.pop(name, None)
        if self.restored is None:
            info |= origin | {"seed": self.config.seed, "inexact": [], "drift": []}
        else:
            decided = [change for change in changes if not change.harmless]
            self.differs = [str(change) for change in decided]
            self.differs += [f"{name} ({was}, now {now})" for name, was, now in differences(info, origin)]
            for entries in ("inexact", "drift"):
                info[entries] = [entry for entry in info.get(entries, []) if entry["step"] < step]
            drift = {kind: {c.name: c.before for c in decided if c.kind == kind} for kind in ("settings", "sources")}
            if decided:
                info["drift"].append({"step": step} | drift)
            info["sources"] = info.get("sources", {}) | dict(self.sources)
        info["resumes"].append({"step": step, "time": provenance.now()} | origin)
        info |= {"status": "running", "ended": None, "pid": os.getpid(), "exact": not info["inexact"]}
        write_json(self.folder / view.INFO, info)
        self.spent = spent(self.folder, info)

    def _checked_changes(self, info: Mapping[str, Any]) -> list[Change]:
        """Return the changes since the run was at `start_step`; none without a restored checkpoint.

        Raises UserError if a change breaks exactness, unless `allow_drift` is true. A run that was resumed with other
        settings may keep them, or return to its settings at `start_step`.
        """
        if self.restored is None:
            return []
        source, step = self.source, self.start_step
        edited = self._edited_history(self.restored[1])
        if edited and not self.config.allow_drift:
            raise UserError(
                f"{source}: {', '.join(edited)} changed or went missing after checkpoint step_{step} was written, so "
                "the records of the run would be wrong: restore them, resume from an earlier step, or add "
                "--allow-drift"
            )
        now = settings.settings_of(source, self.config), info.get("sources", {})
        then = dict(now[0]), dict(now[1])
        for entry in reversed(info.get("drift", [])):  # steps at which it went on with others, and the values before
            if entry["step"] >= step:
                then[0].update(entry["settings"])
                then[1].update(entry["sources"])
        found = self._changes(*then)
        breaking = [change for change in self._changes(*now) if not change.harmless]
        if breaking and any(not change.harmless for change in found) and not self.config.allow_drift:
            raise UserError(
                f"resuming {source} with another {', '.join(map(str, breaking))} would make the run "
                "inexact: set it back (the run's own settings are in its config.toml: @ "
                f"{source / view.CONFIG}), or add --allow-drift"
            )
        return [Change(name, "recorded", "edited", kind="records") for name in edited] + found

    def _changes(self, settings_before: Mapping[str, Any], sources_before: Mapping[str, Any]) -> list[Change]:
        return settings.changes(settings_before, self.config, sources_before) + [
            Change(name, sources_before[name], now, kind="sources")
            for name, now in self.sources.items()
            if sources_before.get(name, now) != now
        ]

    def _edited_history(self, state: Mapping[str, Any]) -> list[str]:
        """Return missing files, and logs that don't begin as the checkpoint recorded."""
        edited = []
        for name, was in state.get("logs", {}).items():
            lines = b"".join(whole_lines(self.source / name))[: was["bytes"]]
            if len(lines) != was["bytes"] or hashlib.sha256(lines).hexdigest() != was["sha256"]:
                edited.append(name)
        before = [line for line in view.RunView(self.source).hashes() if line["step"] < self.start_step]
        names = [view.rollouts_file(line["step"]) for line in before if line["rollouts"]]
        names += [view.evals_file(line["step"]) for line in before if line.get("evals")]
        return edited + [name for name in names if not (self.source / name).exists()]


def parent_of(info: Mapping[str, Any] | None, source: Mapping[str, Any], step: int | None) -> dict[str, Any]:
    """Return `parent` of run.json if the run is a complete branch of `source` at `step` (None: any step), else {}."""
    parent = (info or {}).get("parent", {})
    whole = info is not None and info["status"] != _COPYING
    return parent if whole and parent.get("id") == source["id"] and step in (None, parent["step"]) else {}


def target_in_words(info: Mapping[str, Any]) -> str:
    if not (target := info.get("target")):
        return ""
    return "{metric} was {value:.4g} (target {target}) at step {step}".format(**target)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (name, before, now) of the facts that differ between two run.json and can make equal runs differ."""
    pairs = [(name, value, now["versions"].get(name)) for name, value in before.get("versions", {}).items()]
    pairs += [(name, before["hardware"].get(name), now["hardware"].get(name)) for name in ("cpu", "gpu")]
    pairs += [
        (name, before.get(name, usual), now.get(name, usual)) for name, usual in (("ranks", 1), ("threads", None))
    ]
    if "variables" in before and "variables" in now:
        mine, theirs = before["variables"], now["variables"]
        pairs += [(name, mine.get(name), theirs.get(name)) for name in mine | theirs]
    mine, theirs = (facts.get("sources", {}).get("code", "")[:8] for facts in (before, now))
    pairs += [("hone's code", mine, theirs)] if mine and theirs else []
    return [(name, one, other) for name, one, other in pairs if one != other]
