"""When a run saves, and what: the same for every loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hone.config.shared import CkptConfig
from hone.runs.checkpoint import Tensors
from hone.runs.signals import StopRequest
from hone.runs.writer import RunWriter


class Saver:
    """Saves versions of the policy: weights to use, checkpoints to resume from.

    `export(folder, step)` writes weights; `snapshot()` returns the tensors and the state that an exact resume needs.
    The weights come first: where there is a checkpoint there are its weights, however the process ends.
    """

    def __init__(
        self,
        run: RunWriter,
        stop: StopRequest,
        ckpt: CkptConfig | None,
        export: Callable[[Path, int], None],
        snapshot: Callable[[], tuple[Tensors, dict[str, Any]]],
    ) -> None:
        self.run = run
        self.stop = stop
        self.ckpt = ckpt
        self.export = export
        self.snapshot = snapshot

    def save(self, step: int, last: bool = False) -> None:
        """Saves version `step` if it is due: every `ckpt.interval` steps, and at the end (`last`).

        Without `--ckpt` the end writes weights only; a run that is stopped by a signal always saves a checkpoint.
        """
        interval = self.ckpt.interval if self.ckpt else None
        due = last or (interval is not None and step % interval == 0)
        if not due or (step == self.run.start_step and (not last or self.run.weights_path(step).exists())):
            return
        with self.run.phase("checkpoint"):
            with self.run.weights_dir(step) as folder:
                self.export(folder, step)
            if self.ckpt or self.stop:
                tensors, state = self.snapshot()
                self.run.save_checkpoint(step, tensors, state)
