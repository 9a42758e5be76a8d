"""Verify a run: compare its files with their hashes, and execute random steps of it again in full.

To reach a step, recorded rollouts are replayed from the nearest checkpoint before it, or from the initial model. Then
the step is sampled, graded and trained anew, and compared quantity by quantity. If a server sampled, the recorded
completions are graded and trained on, as sampling can't be repeated. If a program made the rollouts, they are trained
on with their recorded rewards. Steps that a killed run had not hashed, and the last evaluation, are always executed
again. The verdicts are:

verified         the files fit their hashes, and the steps come out equal to the bit
files only       the files fit their hashes; no step was executed again, so any record may be made up
differs          a step comes out different, though machine and sources are the same
damaged          files do not fit their hashes
not comparable   a step comes out different, but machine, versions or sources differ
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hone import rng
from hone.errors import UserError
from hone.extensions.reproduce.compare import QUANTITIES, Difference, StepRecord, first_difference
from hone.extensions.reproduce.execution import OnStep, Rebuilt
from hone.extensions.reproduce.integrity import Checked, Damage
from hone.extensions.reproduce.machine import inexact
from hone.extensions.reproduce.records import CANARY, EVALUATIONS, SENT_BACK
from hone.runs import Run, provenance
from hone.runs.files import write_json
from hone.runs.summary import certificate_path, pinned

Verdict = Literal["verified", "files only", "differs", "damaged", "not comparable"]
EXIT_CODES: dict[Verdict, int] = {"verified": 0, "files only": 0, "differs": 1, "damaged": 1, "not comparable": 3}
FORMAT = "hone-verify-1"

WITH_EVALUATION = ("done", "budget")
"""Statuses of runs that ended with the last evaluation, if they have evaluations."""


@dataclass(frozen=True)
class StepCheck:
    """One step that was executed again or, if `is_evaluation`, the evaluation of version `step`.

    `start` names the weights before the `replayed` steps. `difference` is the first difference; it is in a replayed
    step if `fingerprint` is None. `damage` is a file that was changed.
    """

    step: int
    is_evaluation: bool
    start: str
    replayed: int
    seconds: float
    fingerprint: str | None
    difference: Difference | None
    damage: Damage | None = None

    def sentence(self) -> str:
        if self.difference is None:
            return "equal"
        how = "executed again" if self.fingerprint else "replayed from the recorded rollouts"
        return f"{how}, {self.difference.sentence('the run', 'the re-execution')}"

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = {"step": self.step, "from": self.start, "replayed": self.replayed}
        record |= {"equal": self.difference is None, "weights": self.fingerprint}
        if self.difference is not None:
            record |= {"difference": self.difference.as_dict() | {"sentence": self.sentence()}}
        return record


@dataclass
class Verification:
    """The result of a verification. `resampled` and `regraded` say if steps were sampled anew, and graded anew.

    `reasons` say why a difference would prove nothing; `notes` name what was not checked. `limit` is the largest
    relative difference of training values that counts as equal.
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
    regraded: bool = True
    limit: float = 0.0

    @property
    def difference(self) -> StepCheck | None:
        return next((check for check in (*self.steps, self.evaluation) if check and check.difference), None)

    def write_certificate(self, run: Run, machine: Mapping[str, Any]) -> Path:
        """Write `<run>.verify.json` beside the run; return its path. Raises UserError if it can't be written."""
        about = {name: run.info.get(name) for name in ("id", "kind", "status", "seed", "exact", "inexact")}
        span = {name: self.candidates[i] for name, i in (("first", 0), ("last", -1))} if self.candidates else None
        certificate = {
            "format": FORMAT,
            "verdict": self.verdict,
            "date": provenance.now(),
            "run": about | {"numerics": provenance.numerics(run.info)},
            "sha256": pinned(run.path),
            "files": self.checked.counts,
            "damaged": [vars(damage) for damage in self.checked.damages],
            "quantities": list(QUANTITIES),
            "steps": [check.record() for check in self.steps],
            "evaluation": self.evaluation and self.evaluation.record(),
            "choice": {"seed": self.seed, "candidates": span and span | {"count": len(self.candidates)}},
            "incomparable": self.reasons,
            "notes": self.notes,
            "machine": dict(machine),
        }
        path = certificate_path(run.path)
        try:
            write_json(path, certificate)
        except OSError as error:
            raise UserError(
                f"the certificate {path} can't be written ({error.strerror}): copy the run to a writable folder"
            ) from None
        return path


def choose_steps(candidates: Sequence[int], count: int, seed: int) -> list[int]:
    """Choose `count` of the candidates (all, if there are fewer) at random, ascending."""
    count = min(count, len(candidates))
    picked = rng.stream(seed, "verify").choice(len(candidates), size=count, replace=False)
    return sorted(candidates[int(i)] for i in picked)


def unhashed_steps(checked: Checked) -> list[int]:
    """List the steps without a hash, ascending. Only executing these steps again can check their files."""
    return sorted(checked.open_steps | {version - 1 for version in checked.open_weights if version})


def check_steps(
    verification: Verification,
    rebuilt: Rebuilt,
    steps: Sequence[int],
    evaluated: int | None,
    on_end: Callable[[StepCheck], None],
    on_replay: OnStep,
    on_repeat: OnStep,
) -> None:
    """Execute the steps again, then the evaluation of version `evaluated`, and set the verdict.

    Stops at the first difference. `on_replay(step)` and `on_repeat(step)` are called before a step, `on_end` after it.
    """
    for step in [*steps, *([evaluated] if evaluated is not None else [])]:
        clock = time.perf_counter()
        rebuilt.approach(step)
        start, to_replay = rebuilt.name(rebuilt.loaded), step - rebuilt.trainer.version
        found, fingerprint, damage = rebuilt.replay(step, on_replay), None, None
        if found is None:
            on_repeat(step)
            again = rebuilt.evaluation() if step == evaluated else rebuilt.repeat(step)
            fingerprint = again.before if step == evaluated else again.after
            found = first_difference(_recorded(rebuilt, again, step == evaluated), again, rebuilt.limit)
            if found is None and step != evaluated and not rebuilt.limit:
                found, damage = _changed_weights(verification.checked, again)
        seconds = time.perf_counter() - clock
        check = StepCheck(step, step == evaluated, start, to_replay, seconds, fingerprint, found, damage)
        if check.is_evaluation:
            verification.evaluation = check
        else:
            verification.steps.append(check)
        on_end(check)
        if found is not None:
            # causes of inexactness at later steps don't count
            verification.reasons += inexact(rebuilt.records.run.info, found.step, verification.resampled)
            verification.verdict = "not comparable" if verification.reasons else "differs"
            if damage and not verification.reasons:
                verification.verdict = "damaged"
                verification.checked.damages.append(damage)
            return
    verification.verdict = "verified" if steps else "files only"


def _recorded(rebuilt: Rebuilt, again: StepRecord, is_evaluation: bool) -> StepRecord:
    """Return the run's record of the step in `again`, without metrics that the re-execution can't have."""
    names = tuple(again.metrics or ())
    without = SENT_BACK if any(name.startswith(CANARY) for name in names) else (*SENT_BACK, *CANARY)
    if is_evaluation:
        recorded = rebuilt.records.record(again.step, without)
        ended = rebuilt.records.run.info["status"] in WITH_EVALUATION  # without metrics, somebody took them out
        metrics = {} if ended and recorded.metrics is None else recorded.metrics
        return replace(recorded, rows=None, after=None, metrics=metrics)
    evaluated = any(name.startswith(EVALUATIONS) for name in names)
    return rebuilt.records.record(again.step, without if evaluated else (*without, *EVALUATIONS))


def _changed_weights(checked: Checked, again: StepRecord) -> tuple[Difference | None, Damage | None]:
    """Compare saved weights that hashes.jsonl lacks with the version that the step made."""
    for name, fingerprint in checked.open_weights.get(again.step + 1, {}).items():
        if fingerprint != again.after:
            difference = Difference(again.step, "weights", f"the fingerprint of {name}", fingerprint, again.after)
            problem = f"its weights differ from the result of step {again.step}: they and their hashes were changed"
            return difference, Damage(name, problem)
    return None, None
