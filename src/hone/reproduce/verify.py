"""Is a run what it says? Its files against their hashes, and random steps of it executed again in full.

A step is executed again from the nearest checkpoint before it, or from the initial model: the recorded rollouts bring
the weights to the step, each version compared with its fingerprint; then the step is sampled, graded and trained anew,
and compared quantity by quantity. What a server sampled can't be had again: those steps are graded and trained anew on
their recorded completions. What a run that was killed had not yet hashed is always executed again, and so is the
evaluation at the end. Five verdicts:

verified         the files fit their hashes and each other, and the steps come out equal to the bit
files only       the files fit their hashes and each other; no step was executed again, so all may be made up
differs          a step comes out otherwise, though machine and sources are those of the run
damaged          files do not fit their hashes, or what follows from them
not comparable   a step comes out otherwise, and so may it where machine, versions or sources differ

Covered are metrics.jsonl, hashes.jsonl, rollouts/, evals/, checkpoints/ and weights/; timings.jsonl, events.jsonl and
logs/ are not. run.json and config.toml say what to execute: their hashes are in the certificate, and nowhere in the
run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from hone import rng
from hone.reproduce.compare import Difference, StepRecord
from hone.reproduce.integrity import Checked, Damage
from hone.reproduce.machine import inexact
from hone.reproduce.records import CANARY, EVALUATIONS, SENT_BACK
from hone.reproduce.versions import Tell, Versions

Verdict = Literal["verified", "files only", "differs", "damaged", "not comparable"]
EXIT_CODES: dict[Verdict, int] = {"verified": 0, "files only": 0, "differs": 1, "damaged": 1, "not comparable": 3}

WITH_EVALUATION = ("done", "budget")
"""Statuses of runs that ended with the evaluation of the last version, where there are evaluations."""


@dataclass(frozen=True)
class StepCheck:
    """One step, executed again; or with `is_evaluation` the evaluation of the last version, which `step` then is.

    `start` is where its weights came from, in words, `replayed` how many steps were replayed from there. `difference`
    is the first one that was found: with `while_replaying` at a step before, replayed from its recorded rollouts. With
    `damage` it shows that this file was changed.
    """

    step: int
    start: str
    replayed: int
    difference: Difference | None
    while_replaying: bool
    fingerprint: str | None
    seconds: float
    is_evaluation: bool = False
    damage: Damage | None = None

    def sentence(self) -> str:
        """How the step came out."""
        if self.difference is None:
            return "equal"
        how = "replayed from the recorded rollouts" if self.while_replaying else "executed again"
        return f"{how}, {self.difference.sentence('the run', 'the re-execution')}"


@dataclass
class Verification:
    """What was found. `evaluation` is the check of the one at the end, if the run has it and it was done again.

    `resampled`: steps were sampled anew; else taken again from their recorded completions. `reasons` are why a
    difference would prove nothing; `notes` what could not be checked. `tolerance`: how far what training gives may be
    from what is recorded, relative to its size; None: not at all.
    """

    verdict: Verdict
    checked: Checked
    steps: list[StepCheck] = field(default_factory=list)
    evaluation: StepCheck | None = None
    seed: int | None = None
    candidates: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    resampled: bool = True
    tolerance: float | None = None

    @property
    def difference(self) -> StepCheck | None:
        """The step that came out otherwise."""
        checks = [*self.steps, *([self.evaluation] if self.evaluation else [])]
        return next((check for check in checks if check.difference is not None), None)


def choose(candidates: Sequence[int], count: int, seed: int) -> list[int]:
    """`count` of the candidates (all, if there are fewer), by chance, ascending."""
    count = min(count, len(candidates))
    picked = rng.stream(seed, "verify").choice(len(candidates), size=count, replace=False)
    return sorted(candidates[int(i)] for i in picked)


def unhashed_steps(checked: Checked) -> list[int]:
    """Steps that have to be executed again, for only that tells whether what they wrote was changed; ascending."""
    if not checked.hashed:
        return []  # of a run without hashes that would be all of them
    return sorted(checked.open_steps | {version - 1 for version in checked.open_weights if version})


def check_steps(
    verification: Verification,
    versions: Versions,
    steps: Sequence[int],
    evaluated: int | None,
    ended: Callable[[StepCheck], None],
    replaying: Tell = lambda step: None,
    repeating: Tell = lambda step: None,
) -> None:
    """Executes the steps again, then the evaluation of version `evaluated`, and sets the verdict.

    Stops at the first that comes out otherwise. `replaying(step)` and `repeating(step)` are called before either is
    done, `ended` when a step has been checked.
    """
    for step in steps:
        check = _check(verification.checked, versions, step, replaying, repeating)
        verification.steps.append(check)
        ended(check)
        if check.difference is not None:
            _judge(verification, versions, check)
            return
    if evaluated is not None:
        verification.evaluation = check = _check_evaluation(versions, evaluated, replaying, repeating)
        ended(check)
        if check.difference is not None:
            _judge(verification, versions, check)
            return
    verification.verdict = "verified" if steps else "files only"


def _check(checked: Checked, versions: Versions, step: int, replaying: Tell, repeating: Tell) -> StepCheck:
    clock = time.perf_counter()
    start, to_replay, found = _reach(versions, step, replaying)
    if found is not None:
        return StepCheck(step, start, to_replay, found, True, None, time.perf_counter() - clock)
    repeating(step)
    again = versions.execution.repeat(step)
    evaluated = any(name.startswith(EVALUATIONS) for name in again.metrics or ())
    without = (*(() if evaluated else EVALUATIONS), *_aside(again))
    found = versions.difference(versions.records.record(step, without), again)
    damage = None
    if found is None:
        found, damage = _changed_weights(checked, again)
    seconds = time.perf_counter() - clock
    return StepCheck(step, start, to_replay, found, False, again.after, seconds, damage=damage)


def _check_evaluation(versions: Versions, version: int, replaying: Tell, repeating: Tell) -> StepCheck:
    clock = time.perf_counter()
    start, to_replay, found = _reach(versions, version, replaying)
    again = None
    if found is None:
        repeating(version)
        again = versions.execution.evaluation()
        recorded = versions.records.record(version, _aside(again))
        metrics = recorded.metrics
        if metrics is None and versions.records.run.info["status"] in WITH_EVALUATION:
            metrics = {}  # somebody took them out
        found = versions.difference(replace(recorded, rows=None, metrics=metrics, after=None), again)
    fingerprint = again.before if again else None
    seconds = time.perf_counter() - clock
    return StepCheck(version, start, to_replay, found, again is None, fingerprint, seconds, is_evaluation=True)


def _aside(again: StepRecord) -> tuple[str, ...]:
    """Metrics that no re-execution has, and those of a canary, if it measured none: that of a server is another one."""
    measured = any(name.startswith(CANARY) for name in again.metrics or ())
    return SENT_BACK if measured else (*SENT_BACK, *CANARY)


def _reach(versions: Versions, version: int, replaying: Tell) -> tuple[str, int, Difference | None]:
    """Brings the execution to this version: (where it came from, steps to replay, the first that differs)."""
    versions.approach(version)
    to_replay = version - versions.execution.trainer.version
    return versions.came_from, to_replay, versions.replay(version, replaying)


def _changed_weights(checked: Checked, again: StepRecord) -> tuple[Difference | None, Damage | None]:
    """Saved weights of the version that a step made, of which hashes.jsonl has no fingerprint, if they are others."""
    for name, fingerprint in checked.open_weights.get(again.step + 1, {}).items():
        if fingerprint != again.after:
            found = Difference(again.step, "weights", f"the fingerprint of {name}", fingerprint, again.after)
            problem = f"its weights are not those that step {again.step} makes: they were changed, and its COMPLETE too"
            return found, Damage(f"{name}/model.safetensors", problem)
    return None, None


def _judge(verification: Verification, versions: Versions, check: StepCheck) -> None:
    """What a step that came out otherwise means. What made the run inexact later is no excuse for it."""
    assert check.difference is not None
    verification.reasons += inexact(versions.records.run.info, check.difference.step, verification.resampled)
    if verification.reasons:
        verification.verdict = "not comparable"
        return
    verification.verdict = "differs"
    if damage := check.damage or _bad_start(versions):
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
