"""Is a run what it says? Its files against their hashes, and random steps of it executed again in full.

A step is executed again from the nearest checkpoint before it, or from the initial model: the recorded rollouts bring
the weights to the step, each version compared with its fingerprint; then the step is sampled, graded and trained anew,
and compared quantity by quantity. Four verdicts:

verified         all files are as they were written, and the steps come out equal to the bit
differs          a step comes out otherwise, though machine and sources are those of the run
damaged          files are not as they were written
not comparable   a step comes out otherwise, and so may it where machine, versions or sources differ
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hone import rng
from hone.reproduce.compare import Difference, first_difference
from hone.reproduce.integrity import Checked, Damage
from hone.reproduce.records import EVALUATIONS
from hone.reproduce.versions import Tell, Versions

Verdict = Literal["verified", "differs", "damaged", "not comparable"]
EXIT_CODES: dict[Verdict, int] = {"verified": 0, "differs": 1, "damaged": 1, "not comparable": 3}


@dataclass(frozen=True)
class StepCheck:
    """One step, executed again.

    `start` is where its weights came from, in words, `replayed` how many steps were replayed from there. `difference`
    is the first one that was found: with `while_replaying` at a step before, replayed from its recorded rollouts.
    """

    step: int
    start: str
    replayed: int
    difference: Difference | None
    while_replaying: bool
    fingerprint: str | None
    seconds: float

    def sentence(self) -> str:
        """How the step came out."""
        if self.difference is None:
            return "equal"
        how = "replayed from the recorded rollouts" if self.while_replaying else "executed again"
        return f"{how}, {self.difference.sentence('the run', 'the re-execution')}"


@dataclass
class Verification:
    """What was found. `reasons` are why a difference would prove nothing; `notes` what could not be checked."""

    verdict: Verdict
    checked: Checked
    steps: list[StepCheck] = field(default_factory=list)
    seed: int | None = None
    candidates: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def difference(self) -> StepCheck | None:
        """The step that came out otherwise."""
        return next((check for check in self.steps if check.difference is not None), None)


def choose(candidates: Sequence[int], count: int, seed: int) -> list[int]:
    """`count` of the candidates (all, if there are fewer), by chance, ascending."""
    count = min(count, len(candidates))
    picked = rng.stream(seed, "verify").choice(len(candidates), size=count, replace=False)
    return sorted(candidates[int(i)] for i in picked)


def check_steps(
    verification: Verification,
    versions: Versions,
    steps: Sequence[int],
    ended: Callable[[StepCheck], None],
    replaying: Tell = lambda step: None,
    repeating: Tell = lambda step: None,
) -> None:
    """Executes the steps again, up to the first that comes out otherwise, and sets the verdict.

    `replaying(step)` and `repeating(step)` are called before either is done, `ended` when a step has been checked.
    """
    for step in steps:
        check = _check(versions, step, replaying, repeating)
        verification.steps.append(check)
        ended(check)
        if check.difference is not None:
            _judge(verification, versions)
            return
    verification.verdict = "verified"


def _check(versions: Versions, step: int, replaying: Tell, repeating: Tell) -> StepCheck:
    clock = time.perf_counter()
    versions.approach(step)
    trainer, records = versions.execution.trainer, versions.records
    start, to_replay = versions.came_from, step - trainer.version
    if found := versions.replay(step, replaying):
        return StepCheck(step, start, to_replay, found, True, None, time.perf_counter() - clock)
    repeating(step)
    again = versions.execution.repeat(step)
    evaluated = any(name.startswith(EVALUATIONS) for name in again.metrics or ())
    found = first_difference(records.record(step, evaluations=evaluated), again)
    return StepCheck(step, start, to_replay, found, False, again.after, time.perf_counter() - clock)


def _judge(verification: Verification, versions: Versions) -> None:
    """What a step that came out otherwise means."""
    if verification.reasons:
        verification.verdict = "not comparable"
        return
    verification.verdict = "differs"
    if damage := _bad_start(versions):
        verification.verdict = "damaged"
        verification.checked.damages.append(damage)


def _bad_start(versions: Versions) -> Damage | None:
    """The checkpoint from which the last step was reached, if the versions before it don't lead to it.

    Its marker, and all hashes with it, may have been made to fit: the state of the optimiser has no fingerprint.
    """
    start = versions.loaded
    earlier = versions.nearest(start - 1) if start in versions.intact else None
    if earlier is None:
        return None
    versions.load(earlier)
    if versions.replay(start) is not None or (found := versions.differs_from_checkpoint()) is None:
        return None
    file, tensor = found
    steps = f"steps {earlier} to {start - 1}" if earlier < start - 1 else f"step {earlier}"
    how = f"replaying {steps} from {versions.name(earlier)} does not lead to its {tensor}"
    return Damage(f"checkpoints/step_{start}/{file}", f"{how}: it was changed, and its COMPLETE with it")
