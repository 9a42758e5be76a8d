"""Differences of two runs: their configs, and the first differing step and quantity in their records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hone.errors import UserError
from hone.extensions.reproduce import machine
from hone.extensions.reproduce.compare import Difference, first_difference
from hone.extensions.reproduce.records import CANARY, SENT_BACK, Records
from hone.runs import Run, view
from hone.runs.files import sha256
from hone.runs.settings import Change, differing, flat


@dataclass(frozen=True)
class RunDiff:
    """The differences of two runs. `equal` are the steps with equal updates before `difference`; `lengths` are the two
    runs' numbers of updates; `causes` are machine differences, and reasons why a run is not reproducible.
    """

    settings: list[Change]
    equal: list[int]
    difference: Difference | None
    lengths: tuple[int, int]
    causes: list[str]


def diff(first: Run, second: Run, progress: Callable[[int], None] = lambda step: None) -> RunDiff:
    """Compare two runs of a kind, step by step, up to the first difference. UserError if no step is in both runs."""
    mine, theirs = Records(first), Records(second)
    # After its last step a run may evaluate once more, so a step may be an update in only one of the runs.
    both = sorted(mine.metrics.keys() & theirs.metrics.keys())
    shared = [step for step in both if mine.is_update(step) == theirs.is_update(step)]
    lengths = (len(mine.updates), len(theirs.updates))
    modes = [run.config.get("mode", "colocated") for run in (first, second)]
    without = SENT_BACK if modes[0] == modes[1] else (*SENT_BACK, *CANARY)  # a server's canary is another one
    if not shared:
        raise UserError(
            f"there is nothing to compare: {first.path} recorded {lengths[0]} steps, {second.path} {lengths[1]}, and "
            "no step is in both runs: name runs with a common step in metrics.jsonl"
        )
    equal: list[int] = []
    difference = None
    for step in shared:
        progress(step)
        if (difference := _compare(mine, theirs, step, without)) is not None:
            break
        if mine.is_update(step):
            equal.append(step)
    causes = machine.differences(first.info, second.info, "B")
    for name, run in (("A", first), ("B", second)):
        causes += [f"{name} is not reproducible: {cause}" for cause in machine.inexact(run.info)]
    one, other = flat(first.config), flat(second.config)  # without paths, display and saving
    names = [name for name in differing(one, other) if name != "data.path"]
    settings = [Change(name, one.get(name), other.get(name)) for name in names]
    return RunDiff(settings, equal, difference, lengths, causes)


def _compare(first: Records, second: Records, step: int, without: tuple[str, ...]) -> Difference | None:
    """Return the first difference of a step. Completions are read only if their files differ."""
    equal_files = True
    for quantity, kind, name in (
        ("rollouts", "rollouts", view.rollouts_file(step)),
        ("evaluation", "evals", view.evals_file(step)),
    ):
        files = [records.run.path / name for records in (first, second)]
        there = [file.exists() for file in files]
        written = [(records.hashes.get(step) or {}).get(kind) is not None for records in (first, second)]
        lost = any(hashed and not exists for hashed, exists in zip(written, there, strict=True))
        if lost or (kind == "rollouts" and any(there) != all(there)):
            return Difference(step, quantity, name, *("there" if one else "missing" for one in there))
        equal_files &= len({sha256(file) for file in files if file.exists()}) < 2
    mine, theirs = (records.record(step, without, samples=not equal_files) for records in (first, second))
    return first_difference(mine, theirs)
