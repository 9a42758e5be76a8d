"""Saving and pausing a run, the same for every loop."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from hone.config.shared import CkptConfig
from hone.runs.checkpoint import Tensors
from hone.runs.files import write_json
from hone.runs.signals import StopRequest
from hone.runs.view import PAUSED
from hone.runs.writer import RunWriter

if TYPE_CHECKING:
    import torch

Ending = Literal["done", "stopped", "budget"]
"""Why a loop ended: all steps are taken or the target is reached; a signal stopped it; the budget is used up."""


@dataclass(frozen=True)
class Snapshot:
    """The state that an exact resume needs: the live tensors (group `model` is the policy), and the loop's state.

    `state()` returns the state of this moment, even if another thread calls it later. `part` is a folder with files of
    other processes, which are moved into the checkpoint.
    """

    tensors: Tensors
    state: Callable[[], dict[str, Any]]
    part: Path | None = None


class Saver:
    """Saves versions of the policy: weights to use, and checkpoints to resume from. Every checkpoint has weights, too.

    `export(folder, step, parameters)` writes weights. `snapshot` gets True for a checkpoint. Unless `ckpt.background`
    is off, the loop waits only while the tensors are copied. An alarm may request a checkpoint, and a pause after it.
    If `planned` is true, a version becomes a checkpoint only if `wants_checkpoint` returned True for it.
    """

    def __init__(
        self,
        run: RunWriter,
        stop: StopRequest,
        ckpt: CkptConfig | None,
        export: Callable[[Path, int, dict[str, torch.Tensor]], None],
        snapshot: Callable[[bool], Snapshot],
        planned: bool = False,
    ) -> None:
        self.run = run
        self.stop = stop
        self.ckpt = ckpt
        self.export = export
        self.snapshot = snapshot
        self.planned = planned
        self._promised: int | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="save")
        self._writing: Future[None] | None = None
        self._saved: tuple[int, bool] | None = None
        self.halted = False
        """True if the run must end. A checkpoint is then saved."""

    @property
    def stopping(self) -> bool:
        return bool(self.stop) or bool(self.run.budget.used_up)

    def at_target(self, version: int = 0, metrics: Mapping[str, float] = MappingProxyType({})) -> bool:
        """Return True if a metric has reached the target of `config.stop`, at `version` (in `metrics`) or earlier."""
        self.run.look_for_target(version, metrics)
        return self.run.target is not None

    def ending(self, version: int, max_steps: int) -> Ending:
        if self.stop:
            return "stopped"
        return "done" if version == max_steps or self.run.target else "budget"

    def save(self, step: int, last: bool = False) -> None:
        """Save version `step` if it is due: every `ckpt.interval` steps, and at the end (`last`).

        Without `--ckpt` the end saves only weights, but if the run is stopped early, also a checkpoint. If `last` is
        true, all files are written on return. Raises OSError if files of this or an earlier version can't be written.
        """
        if self._writing is not None and self._writing.done():
            self._wait()
        alarms = self.run.alarms
        asked = alarms.saves and (last or not self.planned or step == self._promised)
        checkpoint = asked or self.ckpt is not None or self.stopping or self.halted
        due = self._is_due(step, last, asked, checkpoint)
        if due or last or asked:
            with self.run.phase("checkpoint"):
                self._wait()
                if due:
                    background = self.ckpt is not None and self.ckpt.background and not (last or asked)
                    self._start(step, checkpoint, background)
        if asked:
            pauses, cause = alarms.asked == "pause", alarms.cause
            self._promised = None
            alarms.done()
            if pauses and not last and not self.stopping:
                pause(self.run, step, cause, lambda: self.stopping)

    def save_now(self, step: int) -> None:
        """Save version `step` as weights and as a checkpoint; all files are written on return."""
        self.halted = True
        try:
            self.save(step, last=True)
        finally:
            self.halted = False

    def wants_checkpoint(self, step: int) -> bool:
        """Return True if `save(step)` will make a checkpoint, as far as is known now."""
        if self.run.alarms.saves and self._promised is None:
            self._promised = step
        return step == self._promised or (self.ckpt is not None and self._is_due(step))

    def close(self) -> None:
        self._thread.shutdown()

    def _is_due(self, step: int, last: bool = False, asked: bool = False, checkpoint: bool = True) -> bool:
        regular = self.ckpt is not None and self.ckpt.interval is not None and step % self.ckpt.interval == 0
        if not (last or asked or regular or self._is_resumed(step)):
            return False
        if self._saved is not None and self._saved[0] == step:
            return checkpoint and not self._saved[1]
        if step == self.run.start_step:
            return (last or self._is_resumed(step)) and not self.run.weights_path(step).exists()
        return True

    def _is_resumed(self, step: int) -> bool:
        """Return True if the run resumed from version `step`. Its checkpoint exists; its weights may be damaged."""
        return step == self.run.start_step and self.run.restored is not None

    def _start(self, step: int, with_checkpoint: bool, in_background: bool) -> None:
        checkpoint = with_checkpoint and not self._is_resumed(step)
        positions, snapshot = self.run.log_positions(), self.snapshot(checkpoint)
        tensors = snapshot.tensors
        if in_background:  # training changes the originals
            copies = lambda named: {name: tensor.detach().to("cpu", copy=True) for name, tensor in named.items()}  # noqa: E731
            tensors = {group: copies(named) for group, named in tensors.items()}
        self._saved = (step, with_checkpoint)

        def write() -> None:
            began = time.perf_counter()
            with self.run.weights_dir(step) as folder:
                self.export(folder, step, tensors.get("model", {}))
            if checkpoint:
                self.run.save_checkpoint(step, tensors, snapshot.state() | {"logs": positions}, snapshot.part)
            seconds = time.perf_counter() - began
            self.stop.save_seconds = 1.0 + 2 * seconds
            self.run.budget.took("checkpoint", seconds)

        if in_background:
            self._writing = self._thread.submit(write)
        else:
            write()

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def pause(run: RunWriter, step: int, cause: str, ended: Callable[[], bool]) -> None:
    """Wait until `hone runs continue` removes paused.json, or `ended()` is true. Version `step` is saved."""
    mark = run.folder / PAUSED
    write_json(mark, {"step": step, "alarm": cause})
    run.note(status="paused")
    run.event("paused", step, alarm=cause)
    folder = shlex.quote(str(run.folder))
    run.display.message(
        f"Paused before step {step + 1} by the alarm {cause}; the run is saved.\n"
        f"      Let it go on: hone runs continue {folder}\n      End it: hone runs stop {folder}"
    )
    began = time.perf_counter()
    try:
        with run.phase("pause"):
            while mark.exists() and not ended():
                time.sleep(0.5)
    finally:
        mark.unlink(missing_ok=True)
        run.note(status="running")
    run.waited(time.perf_counter() - began)
    if not ended():
        run.event("continued", step)
