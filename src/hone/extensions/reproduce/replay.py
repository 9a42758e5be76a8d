"""Retrains from recorded rollouts, without environment and sampling, to get the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from hone.extensions.reproduce.compare import Difference
from hone.extensions.reproduce.execution import OnStep, Rebuilt
from hone.extensions.reproduce.rebuild import exported_parameters, merged_parameters
from hone.model.hf import merged
from hone.model.names import hf_slices
from hone.runs.files import sha256
from hone.runs.view import rollouts_file

Tensors = Mapping[str, torch.Tensor]


@dataclass
class Replayed:
    """A replay from version `start` to `reached`, its last `fingerprint`, and the first `difference` from the record.

    `matched` lists checkpoints and exported weights that are equal; `missed` is the first tensor that differs.
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


def replay(rebuilt: Rebuilt, start: int, until: int, on_step: OnStep) -> Replayed:
    """Repeat the updates of steps `start` to `until` - 1, and compare them with the record and with saved weights.

    Stops at the first difference. If sums round differently than in the run (`rebuilt.limit`), saved weights are not
    compared, and the replay continues from each checkpoint.
    """
    trainer, records, result = rebuilt.trainer, rebuilt.records, Replayed(start)
    rebuilt.load(start)
    while result.same and trainer.version < until:
        step, file = trainer.version, rollouts_file(trainer.version)
        expected, actual = records.hashes.get(step, {}).get("rollouts"), sha256(records.run.path / file)
        if expected not in (None, actual):
            result.difference = Difference(step, "rollouts", f"the SHA-256 of {file}", expected, actual)
            break
        result.difference = rebuilt.replay(step + 1, on_step)
        if result.difference is not None:
            break
        if rebuilt.limit:
            if trainer.version in rebuilt.intact:
                rebuilt.load(trainer.version)
            continue
        for name, unequal in _compare_saved(rebuilt):
            if unequal is not None:
                result.missed = unequal
                break
            result.matched.append(name)
    result.reached, result.fingerprint = trainer.version, trainer.fingerprint()
    return result


def _compare_saved(rebuilt: Rebuilt) -> Iterator[tuple[str, str | None]]:
    """Yield the name of saved weights of the current version, and the first tensor that differs, or None."""
    trainer, run, model = rebuilt.trainer, rebuilt.records.run, rebuilt.trainer.model
    version, saved, replayed = trainer.version, {}, trainer.tensors()
    if version in rebuilt.intact:
        saved[f"checkpoints/step_{version}"] = run.checkpoints.load(version)[0]
    if version in (exported := run.weights()):
        how = exported[version], rebuilt.config.precision, model.config.implementation
        groups = saved[f"weights/step_{version}"] = {"model": exported_parameters(*how)}
        if model.lora is not None:
            groups["merged"] = merged_parameters(*how)
            names, weights = {name for name, _, _ in hf_slices(model.config).values()}, model.weights
            replayed["merged"] = {name: merged(model, name, weights).to(model.embed.dtype) for name in names}
    for name, groups in saved.items():
        yield name, _first_unequal(name, groups, replayed)


def _first_unequal(name: str, saved: Mapping[str, Tensors], replayed: Mapping[str, Tensors]) -> str | None:
    """Return the first tensor that differs in a bit, as `TENSOR in NAME/GROUP.safetensors`."""
    for group in sorted(saved):
        mine, other = replayed.get(group, {}), saved[group]
        for tensor in sorted(mine.keys() | other.keys()):
            one, two = mine.get(tensor), other.get(tensor)
            if one is None or two is None or one.dtype != two.dtype or not torch.equal(one.detach().cpu(), two.cpu()):
                return f"{tensor} in {name}/{group}.safetensors"
    return None
