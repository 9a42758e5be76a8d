"""Where two runs part: their configs, and the first step and quantity in which what they recorded differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hone.errors import UserError
from hone.reproduce import machine
from hone.reproduce.compare import Difference, first_difference
from hone.reproduce.records import CANARY, SENT_BACK, Records
from hone.runs import Run
from hone.runs.evaluations import evals_file
from hone.runs.files import sha256
from hone.runs.rollouts import rollouts_file
from hone.runs.settings import differing, flat


@dataclass(frozen=True)
class Setting:
    """A setting in which two configs differ; None for one that isn't set."""

    name: str
    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.name}: {_shown(self.first)} in A, {_shown(self.second)} in B"


@dataclass(frozen=True)
class RunDiff:
    """What was found: `equal` are the updates that both recorded and that are the same, before `difference`.

    `lengths` are the numbers of updates that each recorded. `causes` are facts besides the config in which they differ.
    """

    settings: list[Setting]
    equal: list[int]
    difference: Difference | None
    lengths: tuple[int, int]
    causes: list[str]


def diff(first: Run, second: Run, tell: Callable[[int], None] = lambda step: None) -> RunDiff:
    """Compares two runs of the same kind, step by step, up to the first difference.

    Rollouts whose files are equal are not read. UserError if no step is in both.
    """
    mine, theirs = Records(first), Records(second)
    shared = [step for step in sorted(mine.metrics) if _comparable(mine, theirs, step)]
    lengths = (len(mine.updates), len(theirs.updates))
    modes = [run.config.get("mode", "colocated") for run in (first, second)]
    without = SENT_BACK if modes[0] == modes[1] else (*SENT_BACK, *CANARY)  # a server's canary is another one
    if not shared:
        raise UserError(
            f"there is nothing to compare: {first.path} recorded {lengths[0]} steps, {second.path} {lengths[1]}, and "
            "none is in both: name runs that took a step, with their metrics.jsonl"
        )
    equal: list[int] = []
    difference = None
    for step in shared:
        tell(step)
        if not _same(mine, theirs, step):
            difference = (
                _missing(mine, theirs, step)
                or first_difference(mine.record(step, without), theirs.record(step, without))
                or _exported(mine, theirs, step)
            )
        if difference is not None:
            break
        if mine.is_update(step):
            equal.append(step)
    causes = machine.differences(first.info, second.info, "B")
    for name, run in (("A", first), ("B", second)):
        causes += [f"{name} says itself that it is inexact: {cause}" for cause in machine.inexact(run.info)]
    return RunDiff(changed_settings(first, second), equal, difference, lengths, causes)


def changed_settings(first: Run, second: Run) -> list[Setting]:
    """The settings in which two runs differ, but for where things lie, how they are shown, and what is saved."""
    mine, theirs = flat(first.config), flat(second.config)
    names = [name for name in differing(mine, theirs) if name != "data.path"]
    return [Setting(name, mine.get(name), theirs.get(name)) for name in names]


def _same(first: Records, second: Records, step: int) -> bool:
    """True if fingerprints tell that the weights are equal, and the line of metrics and the files of the step are."""
    mine, theirs = first.hashes.get(step), second.hashes.get(step)
    if mine is None or mine != theirs or first.metrics[step] != second.metrics[step]:
        return False
    if first.recorded_fingerprint(step + 1) != second.recorded_fingerprint(step + 1):
        return False
    for kind, name in (("rollouts", rollouts_file(step)), ("evals", evals_file(step))):
        files = [records.run.path / name for records in (first, second)]
        there = [file.exists() for file in files]
        if any(there) != (mine.get(kind) is not None) or any(there) != all(there):
            return False
        if all(there) and sha256(files[0]) != sha256(files[1]):
            return False
    return True


def _missing(first: Records, second: Records, step: int) -> Difference | None:
    """For rollouts that only one of the runs has, or none although they were written; and for samples of an evaluation
    that were written, and are not there. Older runs wrote none.
    """
    there = [step in records.rollout_steps for records in (first, second)]
    written = any((records.hashes.get(step) or {}).get("rollouts") for records in (first, second))
    if not all(there) and (any(there) or written):
        return Difference(step, "rollouts", rollouts_file(step), *("there" if found else "missing" for found in there))
    there = [step in records.evaluations for records in (first, second)]
    written = [(records.hashes.get(step) or {}).get("evals") is not None for records in (first, second)]
    if any(hashed and not found for hashed, found in zip(written, there, strict=True)):
        return Difference(step, "evaluation", evals_file(step), *("there" if found else "missing" for found in there))
    return None


def _comparable(first: Records, second: Records, step: int) -> bool:
    """True if both recorded the step, and the same part of it: after its last step a run may evaluate once more."""
    return step in second.metrics and first.is_update(step) == second.is_update(step)


def _exported(first: Records, second: Records, step: int) -> Difference | None:
    """For runs without hashes: the weights that were exported after the step."""
    if first.recorded_fingerprint(step + 1) and second.recorded_fingerprint(step + 1):
        return None
    mine, theirs = first.weights_digest(step + 1), second.weights_digest(step + 1)
    if mine is None or theirs is None or mine == theirs:
        return None
    return Difference(step, "weights", f"the SHA-256 of weights/step_{step + 1}", mine, theirs)


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
