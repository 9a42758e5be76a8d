"""Retraining from recorded rollouts: no environment, no sampling, the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hone.reproduce.compare import Difference
from hone.reproduce.integrity import Tensors
from hone.reproduce.records import Records
from hone.reproduce.versions import Tell, Versions
from hone.runs.files import sha256
from hone.runs.rollouts import rollouts_file
from hone.trainer.fingerprint import fingerprint


@dataclass(frozen=True)
class Replayed:
    """How far the replay came: from version `start` to `reached`, with that fingerprint.

    `difference` is the first one from what was recorded. `matched` names what of the run was found equal on the way:
    checkpoints, exported weights; `missed` the first of those that wasn't, and how.
    """

    start: int
    reached: int
    fingerprint: str
    difference: Difference | None
    matched: list[str]
    missed: str | None = None

    @property
    def same(self) -> bool:
        return self.difference is None and self.missed is None


def replay(
    versions: Versions, start: int, until: int, parameters: Callable[[Path], Tensors], tell: Tell = lambda step: None
) -> Replayed:
    """Takes the updates of steps `start` to `until` - 1 again, and compares each with what the run recorded.

    Stops at the first difference. `parameters` gives those of an exported model, by name. With a tolerance, the steps
    after a checkpoint go on from that.
    """
    trainer, records = versions.execution.trainer, versions.records
    versions.load(start)
    matched: list[str] = []
    difference, missed = None, None
    while difference is None and missed is None and trainer.version < until:
        step = trainer.version
        tell(step)
        difference = _changed_file(records, step) or versions.difference(*versions.replayed(step))
        if difference is None:
            found, missed = _saved(versions, parameters)
            matched += found
            if versions.tolerance is not None and missed is None and trainer.version in versions.intact:
                versions.load(trainer.version)  # rounding adds up; from here on it begins anew
    return Replayed(start, trainer.version, trainer.fingerprint(), difference, matched, missed)


def _changed_file(records: Records, step: int) -> Difference | None:
    """Rollouts that are not those that were hashed when they were written."""
    expected = records.hashes.get(step, {}).get("rollouts")
    name = rollouts_file(step)
    actual = sha256(records.run.path / name)
    if expected is None or actual == expected:
        return None
    return Difference(step, "rollouts", f"the SHA-256 of {name}", expected, actual)


def _saved(versions: Versions, parameters: Callable[[Path], Tensors]) -> tuple[list[str], str | None]:
    """What the run saved of the version that has been reached: (equal to it, the first that isn't)."""
    version = versions.execution.trainer.version
    matched = []
    if version in versions.intact:
        if (found := versions.differs_from_checkpoint()) is not None:
            file, tensor = found
            return matched, f"{tensor} in checkpoints/step_{version}/{file}"
        matched.append(f"checkpoints/step_{version}")
    folder = versions.records.run.weights().get(version)
    if folder is not None:
        if _differs(versions, parameters(folder)):
            return matched, f"weights/step_{version}"
        matched.append(f"weights/step_{version}")
    return matched, None


def _differs(versions: Versions, exported: Tensors) -> bool:
    """Whether exported weights are not those of the version that has been reached."""
    if versions.tolerance is not None:
        return versions.far_from(exported)
    return fingerprint(exported) != versions.execution.trainer.fingerprint()
