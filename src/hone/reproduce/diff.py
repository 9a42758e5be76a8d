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
from hone.runs.files import sha256
from hone.runs.rollouts import evals_file, rollouts_file
from hone.runs.settings import differing, flat


@dataclass(frozen=True)
class Setting:
    """A setting in which two configs differ; None for one that isn't set."""

    name: str
    first: Any
    second: Any

    def __str__(self) -> str:
        first, second = (
            "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            for value in (self.first, self.second)
        )
        return f"{self.name}: {first} in A, {second} in B"


@dataclass(frozen=True)
class RunDiff:
    """`equal` are the updates that both recorded and that are the same, before `difference`.

    `lengths` are the numbers of updates that each recorded. `causes` are facts besides the config in which they differ.
    """

    settings: list[Setting]
    equal: list[int]
    difference: Difference | None
    lengths: tuple[int, int]
    causes: list[str]


def diff(first: Run, second: Run, progress: Callable[[int], None] = lambda step: None) -> RunDiff:
    """Compare two runs of the same kind, step by step, up to the first difference.

    Rollouts whose files are equal are not read. Raises UserError if no step is in both.
    """
    mine, theirs = Records(first), Records(second)
    # after its last step a run may evaluate once more: only steps of which both recorded the same part
    shared = [
        s for s in sorted(mine.metrics.keys() & theirs.metrics.keys()) if mine.is_update(s) == theirs.is_update(s)
    ]
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
        progress(step)
        if not _same_files(mine, theirs, step):
            difference = _compare_presence(mine, theirs, step) or first_difference(
                mine.record(step, without), theirs.record(step, without)
            )
        if difference is not None:
            break
        if mine.is_update(step):
            equal.append(step)
    causes = machine.differences(first.info, second.info, "B")
    for name, run in (("A", first), ("B", second)):
        causes += [f"{name} is not reproducible: {cause}" for cause in machine.inexact(run.info)]
    return RunDiff(changed_settings(first, second), equal, difference, lengths, causes)


def changed_settings(first: Run, second: Run) -> list[Setting]:
    """List the settings in which two runs differ, except paths, display, and what is saved."""
    mine, theirs = flat(first.config), flat(second.config)
    names = [name for name in differing(mine, theirs) if name != "data.path"]
    return [Setting(name, mine.get(name), theirs.get(name)) for name in names]


def _same_files(first: Records, second: Records, step: int) -> bool:
    """Return True if fingerprints show that the weights are equal, and the line of metrics and the files are."""
    mine, theirs = first.hashes.get(step), second.hashes.get(step)
    if mine is None or mine != theirs or first.metrics[step] != second.metrics[step]:
        return False
    if first.recorded_fingerprint(step + 1) != second.recorded_fingerprint(step + 1):
        return False
    for kind, name in (("rollouts", rollouts_file(step)), ("evals", evals_file(step))):
        files = [records.run.path / name for records in (first, second)]
        exist = [file.exists() for file in files]
        if any(exist) != (mine.get(kind) is not None) or any(exist) != all(exist):
            return False
        if all(exist) and sha256(files[0]) != sha256(files[1]):
            return False
    return True


def _compare_presence(first: Records, second: Records, step: int) -> Difference | None:
    """Report a file of the step that one run lacks although it, or the other, wrote it."""
    for quantity, kind, name, steps in (
        ("rollouts", "rollouts", rollouts_file(step), [records.rollout_steps for records in (first, second)]),
        ("evaluation", "evals", evals_file(step), [records.evaluations for records in (first, second)]),
    ):
        exist = [step in one for one in steps]
        written = [(records.hashes.get(step) or {}).get(kind) is not None for records in (first, second)]
        lost = any(hashed and not there for hashed, there in zip(written, exist, strict=True))
        if lost or (kind == "rollouts" and any(exist) != all(exist)):
            return Difference(step, quantity, name, *("there" if one else "missing" for one in exist))
    return None
