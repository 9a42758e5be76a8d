"""Retraining from recorded rollouts: no environment, no sampling, the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hone.reproduce.compare import Difference
from hone.reproduce.integrity import Tensors
from hone.reproduce.rebuild import OnStep, Versions
from hone.runs.files import sha256
from hone.runs.rollouts import rollouts_file


@dataclass
class Replayed:
    """How far the replay came: from version `start` to `reached`, with that fingerprint.

    `difference` is the first one from the record. `matched` names the checkpoints and exported weights that came out
    equal on the way; `missed` the first that did not.
    """

    start: int
    reached: int = 0
    fingerprint: str = ""
    difference: Difference | None = None
    matched: list[str] = field(default_factory=list)
    missed: str | None = None

    @property
    def same(self) -> bool:
        return self.difference is None and self.missed is None


def replay(
    versions: Versions, start: int, until: int, parameters: Callable[[Path], Tensors], on_step: OnStep
) -> Replayed:
    """Take the updates of steps `start` to `until` - 1 again, and compare each with the record.

    Stops at the first difference. `parameters` gives an exported model's parameters by name. With a tolerance, the
    steps after a checkpoint go on from that.
    """
    trainer, records, result = versions.execution.trainer, versions.records, Replayed(start)
    exported = records.run.weights()
    versions.load(start)
    while result.same and trainer.version < until:
        step, file = trainer.version, rollouts_file(trainer.version)
        on_step(step)
        expected, actual = records.hashes.get(step, {}).get("rollouts"), sha256(records.run.path / file)
        if expected not in (None, actual):
            result.difference = Difference(step, "rollouts", f"the SHA-256 of {file}", expected, actual)
        else:
            result.difference = versions.replay_step(step)
        if result.difference is not None:
            break
        version = trainer.version
        if version in versions.intact:
            if (unequal := versions.differs_from_checkpoint()) is not None:
                result.missed = f"{unequal[1]} in checkpoints/step_{version}/{unequal[0]}"
                break
            result.matched.append(f"checkpoints/step_{version}")
        if version in exported:
            if versions.differs_from(parameters(exported[version])):
                result.missed = f"weights/step_{version}"
                break
            result.matched.append(f"weights/step_{version}")
        if versions.tolerance is not None and version in versions.intact:
            versions.load(version)  # rounding adds up; from here on it begins anew
    result.reached, result.fingerprint = trainer.version, trainer.fingerprint()
    return result
