"""The versions of a run's policy that can be loaded, and the way from one of them to any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hone.errors import UserError
from hone.reproduce.compare import Difference, StepRecord, first_difference
from hone.reproduce.execution import Execution
from hone.reproduce.records import CANARY, EVALUATIONS, SENT_BACK, Records
from hone.reproduce.tolerance import Tolerance
from hone.runs import shards
from hone.runs.checkpoint import Tensors
from hone.trainer.optim import Optimizer

Tell = Callable[[int], None]


class Versions:
    """Loads versions into an execution: from the checkpoints that are intact, and version 0 from the initial model.

    `has_initial`: the model that the execution was made with is the one that the run began with. Versions before
    `first` are left out: the steps after them were taken with other settings. With `tolerance`, for a run that was
    trained on several ranks, records need not be equal bit for bit.
    """

    def __init__(
        self,
        execution: Execution,
        records: Records,
        intact: Sequence[int],
        has_initial: bool,
        first: int = 0,
        tolerance: Tolerance | None = None,
    ) -> None:
        self.execution = execution
        self.records = records
        self.checkpoints = records.run.checkpoints
        self.intact = [version for version in intact if version >= first]
        self.first = first
        self.tolerance = tolerance
        keep = has_initial and first == 0
        model = execution.trainer.model
        self._initial = {n: p.detach().clone() for n, p in model.named_parameters()} if keep else None
        self.loaded = -1
        """The version that was loaded last."""

    @property
    def loadable(self) -> list[int]:
        """Versions that can be loaded, ascending."""
        return sorted({*self.intact, *([0] if self._initial is not None else [])})

    def nearest(self, version: int) -> int | None:
        """The newest that can be loaded and is not after `version`; None if there is none."""
        return max((loadable for loadable in self.loadable if loadable <= version), default=None)

    def name(self, version: int) -> str:
        """Where a loadable version comes from, in words."""
        return f"checkpoint step_{version}" if version in self.intact else "the initial model"

    @property
    def came_from(self) -> str:
        """What the current version goes back to, in words."""
        return self.name(self.loaded)

    def approach(self, version: int) -> None:
        """Loads the nearest version, unless the current one is nearer still."""
        nearest = self.nearest(version)
        assert nearest is not None, f"no version up to {version} can be loaded"
        if self.loaded < 0 or not nearest < self.execution.trainer.version <= version:
            self.load(nearest)

    @torch.no_grad()
    def load(self, version: int) -> None:
        """Puts the execution where the run was before step `version`."""
        trainer = self.execution.trainer
        if version in self.intact:
            tensors, state = self.checkpoints.load(version)
            try:
                self._reset(tensors["model"])
                trainer.load_tensors(tensors, version)
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"{self.checkpoints.path(version)} is not a checkpoint of this run ({type(error).__name__}: "
                    f"{str(error).splitlines()[0]}), though it fits its COMPLETE: restore it from another copy"
                ) from error
        else:
            assert version == 0 and self._initial is not None
            self._reset(self._initial)
            state = None
        trainer.version = self.loaded = version
        if self.tolerance is not None:
            self._start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        self.execution.begin(state)

    def _reset(self, parameters: dict[str, torch.Tensor]) -> None:
        """The parameters, under an optimiser that knows nothing of earlier steps."""
        trainer = self.execution.trainer
        for name, parameter in trainer.model.named_parameters():
            parameter.copy_(parameters[name])
        trainer.model.refresh()
        with torch.enable_grad():
            trainer.optimizer = Optimizer(trainer.model, trainer.optimizer.config)

    def replay(self, until: int, tell: Tell = lambda step: None) -> Difference | None:
        """Replays from the current version up to version `until`, comparing each step with what was recorded.

        Stops at the first step that differs and returns how.
        """
        while self.execution.trainer.version < until:
            step = self.execution.trainer.version
            tell(step)
            if found := self.difference(*self.replayed(step)):
                return found
        return None

    def replayed(self, step: int) -> tuple[StepRecord, StepRecord]:
        """(recorded, taken again from the recorded rollouts) of the next step."""
        again = self.execution.replay(step)
        return self.records.record(step, without=(*EVALUATIONS, *CANARY, *SENT_BACK)), again

    def difference(self, recorded: StepRecord, again: StepRecord) -> Difference | None:
        """The first quantity in which the two are not what counts as equal for this run."""
        compare = first_difference if self.tolerance is None else self.tolerance.difference
        return compare(recorded, again)

    def differs_from_checkpoint(self) -> tuple[str, str] | None:
        """(file, tensor) of the first one in which the current version is not its checkpoint; None if all are equal.

        With a tolerance all weights are one.
        """
        trainer = self.execution.trainer
        saved, _ = self.checkpoints.load(trainer.version)
        if self.tolerance is None:
            return first_unequal(trainer.tensors(), saved)
        file = "trainer" if shards.is_sharded(self.checkpoints.path(trainer.version)) else "model.safetensors"
        return (file, "model") if self.far_from(saved["model"]) else None

    def far_from(self, parameters: dict[str, torch.Tensor]) -> bool:
        """Whether the current version is beyond the tolerance from these parameters."""
        assert self.tolerance is not None
        return self.tolerance.weights_differ(self._start, parameters, self.execution.trainer.tensors()["model"])


def first_unequal(tensors: Tensors, saved: Tensors) -> tuple[str, str] | None:
    """(`<group>.safetensors`, name) of the first tensor that is not the same bit for bit; None if all are."""
    for group in sorted(tensors.keys() | saved.keys()):
        mine, other = tensors.get(group, {}), saved.get(group, {})
        for name in sorted(mine.keys() | other.keys()):
            if name not in mine or name not in other or not _equal(mine[name], other[name]):
                return f"{group}.safetensors", name
    return None


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first.detach().cpu(), second)
