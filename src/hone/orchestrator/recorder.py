"""What the RL loop tells the run directory: checkpoints and weights when they are due, metrics, timings, rollouts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from hone.config.shared import CkptConfig
from hone.orchestrator.groups import group_state
from hone.orchestrator.ledger import Ledger
from hone.runs.rollouts import group_rows
from hone.runs.signals import StopRequest
from hone.runs.writer import RunWriter
from hone.trainer.step import Trainer
from hone.types import Group


class RunRecorder:
    """Records a colocated run. Weights are exported before the checkpoint of the same step: where there is a checkpoint,
    there are its weights, however the process ends."""

    def __init__(
        self,
        run: RunWriter,
        stop: StopRequest,
        ckpt: CkptConfig | None,
        trainer: Trainer,
        ledger: Ledger,
        export: Callable[[Path, int], None],
    ) -> None:
        self.run = run
        self.stop = stop
        self.ckpt = ckpt
        self.trainer = trainer
        self.ledger = ledger
        self.export = export

    @property
    def stopping(self) -> bool:
        return bool(self.stop)

    def phase(self, name: str) -> AbstractContextManager[None]:
        return self.run.phase(name)

    def checkpoint(self, step: int, last: bool = False) -> None:
        """Every `ckpt.interval` steps and at the end. A run that is stopped is always saved, with or without `--ckpt`."""
        interval = self.ckpt.interval if self.ckpt else None
        due = interval is not None and step % interval == 0
        if step == self.run.start_step and (not last or self.run.weights_path(step).exists()):
            return
        if not (due or last):
            return
        with self.run.phase("checkpoint"):
            with self.run.weights_dir(step) as folder:
                self.export(folder, step)
            if self.ckpt or self.stopping:
                self.run.save_checkpoint(step, self.trainer.tensors(), {"ledger": self.ledger.dump()})

    def record(self, step: int, metrics: dict[str, float], groups: list[Group]) -> None:
        """The rollouts first: a step whose metrics are on disk has its samples on disk."""
        tokens = sum(t.num_sampled for group in groups for t in group.trajectories)
        if groups:
            rows = [row for i, group in enumerate(groups) for row in group_rows(step, i, group, group_state(group))]
            with self.run.phase("record"):
                self.run.rollouts(step, rows)
        seconds = self.run.seconds_so_far
        self.run.log_step(step, metrics, {"tokens/s": tokens / seconds} if tokens else None)
