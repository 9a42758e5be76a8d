"""RunWriter: all that a training loop tells the world, in one place.

with RunWriter.start(config, "rl", sys.argv) as run:
    tensors, state = run.restored or fresh()
    for step in range(run.start_step, config.max_steps):
        with run.phase("sample"): ...
        run.rollouts(step, rows)
        run.log_step(step, metrics)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs import opening, provenance, settings
from hone.runs.checkpoint import Checkpoints, Tensors
from hone.runs.display import Display, make_display
from hone.runs.files import JsonlLog, new_dir, remove_dir, write_file, write_json
from hone.runs.logs import LogFile
from hone.runs.monitors import Monitor, make_monitors
from hone.runs.outputs import Lock, check, existing_run, writable
from hone.runs.rollouts import write_rollouts

if TYPE_CHECKING:
    import torch


class RunWriter:
    """Writes one run directory; made by `RunWriter.start`.

    `start_step` is the first step to take. `restored` is None for a run from the beginning, else the (tensors, state)
    of checkpoint `start_step`. `nothing_left` is true where a finished run was resumed: the directory is as it was, and
    the loop has nothing to do.
    """

    def __init__(self, config: RunConfig, opened: opening.Opened, display: Display, lock: Lock):
        folder = config.output_dir
        self.folder = folder
        self.info = opened.info
        self.start_step = opened.start_step
        self.restored = opened.restored
        self.nothing_left = opened.nothing_left
        self.display = display
        self.checkpoints = Checkpoints(folder / "checkpoints", config.ckpt.keep if config.ckpt else None)
        self._lock = lock
        self._monitors: list[Monitor] = []
        (folder / "logs").mkdir(exist_ok=True)
        self._metrics, self._timings, self._events = (
            JsonlLog(folder / f"{name}.jsonl") for name in ("metrics", "timings", "events")
        )
        self._log_file = LogFile(folder / "logs" / f"{self.info['kind']}.log")
        self._phases: dict[str, float] = {}
        self._not_finite: set[str] = set()
        self._step_began = time.perf_counter()

    @classmethod
    def start(
        cls,
        config: RunConfig,
        kind: str,
        command: list[str],
        protect: list[Path] | None = None,
        out: TextIO | None = None,
        parameters: Mapping[str, torch.Tensor] | None = None,
    ) -> RunWriter:
        """Open `config.output_dir` for a run of `kind` (sft, rl), resuming if the config says so.

        A fresh start moves an earlier run of hone to `.previous/<its id>`. UserError, with nothing touched, if the
        directory can't be written, holds foreign files or any of `protect` (the run's own model, data and other
        sources), or if the checkpoint to resume from doesn't fit `parameters`, the model's by name. `out` is the text
        file the display writes to, by default standard output.
        """
        monitors = make_monitors(config)  # first: a missing package is told before anything is moved
        folder = config.output_dir
        with writable(folder):
            resuming = config.resume is not None and existing_run(folder) is not None
            if not resuming:
                if config.resume is not None and config.resume.step:
                    raise UserError(f"--resume.step {config.resume.step}: there is no run in {folder} to resume")
                check(folder, protect or [])
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder)
            try:
                display = make_display(config.display, kind, config.max_steps, out)
                if resuming:
                    opened = opening.resumed(config, kind, command, display.message, parameters)
                else:
                    opened = opening.fresh(config, kind, command, display.message)
                run = cls(config, opened, display, lock)
                if run.nothing_left:
                    return run
                run.event("resume" if resuming else "start", run.start_step)
                if opened.differs:
                    run.mark_inexact(run.start_step, f"resumed with other {', '.join(opened.differs)}", lasting=True)
                write_file(folder / "config.toml", settings.run_toml(config))
                run._prune()  # what a process that was killed had not got to
            except BaseException:
                lock.release()
                raise
        run._start_monitors(monitors, config)
        display.start(run.start_step)
        run._step_began = time.perf_counter()
        return run

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the step (`sample`, `grade`, `train`, …) as `time/<name>`, and show it meanwhile."""
        self.display.phase(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - began

    @property
    def seconds_so_far(self) -> float:
        """Wall seconds since the last `log_step`: what `time/step` would be now."""
        return time.perf_counter() - self._step_began

    def log_step(self, step: int, metrics: dict[str, Any], timings: dict[str, Any] | None = None) -> None:
        """Write the step's lines. Nothing in `metrics` may come from a clock; that goes into `timings`.

        `time/<phase>` of each `phase` since the last call and `time/step`, in seconds, are added to the timings. A
        metric that isn't finite becomes null, with an event that says what it was. Without metrics nothing is written.
        """
        if not metrics:
            return
        seconds = {f"time/{name}": value for name, value in self._phases.items()}
        seconds["time/step"] = self.seconds_so_far
        self._phases, self._step_began = {}, time.perf_counter()
        metrics_line = {"step": step} | {name: self._finite(step, name, value) for name, value in metrics.items()}
        timings_line = {"step": step} | {name: _rounded(value) for name, value in (seconds | (timings or {})).items()}
        self._metrics.append(metrics_line)
        self._timings.append(timings_line)
        self.display.step(step, metrics_line, timings_line)
        self._tell_monitors(lambda monitor: monitor.log(step, metrics_line, timings_line))

    def _finite(self, step: int, name: str, value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value
        if not isinstance(value, float) or math.isfinite(value):
            return value
        self.event("not_finite", step, metric=name, value=str(value))
        if name not in self._not_finite:
            self.display.message(f"{name} is {value} at step {step}: written as null (told once; see events.jsonl).")
        self._not_finite.add(name)
        return None

    def event(self, kind: str, step: int | None, **fields: Any) -> None:
        """Write one line to events.jsonl, with the time."""
        self._events.append({"kind": kind, "step": step, "time": provenance.now()} | fields)

    def rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Write `rollouts/step_N.parquet`; rows as `hone.runs.rollouts.group_rows` makes them."""
        folder = self.folder / "rollouts"
        folder.mkdir(exist_ok=True)
        write_rollouts(folder / f"step_{step:06d}.parquet", rows)

    @contextmanager
    def weights_dir(self, step: int) -> Iterator[Path]:
        """A directory to export version `step` into; it becomes `weights/step_N` when the block ends."""
        with new_dir(self.weights_path(step)) as folder:
            yield folder
        self.event("weights", step)

    def weights_path(self, step: int) -> Path:
        """Where `weights_dir(step)` ends up."""
        return self.folder / "weights" / f"step_{step}"

    def save_checkpoint(self, step: int, tensors: Tensors, state: dict[str, Any]) -> Path:
        """Save version `step` (after `step` updates, before step `step`), then delete what `ckpt.keep` doesn't keep.

        The logs are flushed first.
        """
        for log in (self._metrics, self._timings, self._events):
            log.sync()
        path = self.checkpoints.save(step, tensors, state)
        self.event("checkpoint", step)
        self._prune()
        return path

    def _prune(self) -> None:
        """Delete surplus checkpoints and their weights."""
        for step in self.checkpoints.surplus():
            # The weights first: killed in between, the next call finds the checkpoint and does it again.
            if self.weights_path(step).exists():
                remove_dir(self.weights_path(step))
            self.checkpoints.remove(step)

    def mark_inexact(self, step: int, cause: str, lasting: bool = False) -> None:
        """Say in run.json that, from `step` on, another run of this config may give other numbers, and why.

        Only the first step of each cause is kept. A resume from before it takes it back, unless it is `lasting`.
        """
        if any(entry["cause"] == cause for entry in self.info["inexact"]):
            return
        self.info["inexact"].append({"step": step, "cause": cause} | ({"lasting": True} if lasting else {}))
        self.info["exact"] = False
        self._save_info()
        self.event("inexact", step, cause=cause)
        self.display.message(f"Another run of this config may differ from step {step} on: {cause}.")

    def finish(self, status: str) -> None:
        """Close the run with its last status: done, stopped (by a signal, saved), failed or interrupted."""
        assert status in ("done", "stopped", "failed", "interrupted"), status
        self._tell_monitors(lambda monitor: monitor.finish(status))
        self.display.close()
        if warnings := self._log_file.close():
            self.display.message(f"{warnings} warning{'s' if warnings > 1 else ''} in {self._log_file.path}.")
        self.info |= {"status": status, "ended": provenance.now()}
        self._save_info()
        self._close_files()

    def _close_files(self) -> None:
        for log in (self._metrics, self._timings, self._events):
            log.sync()
            log.close()
        self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends a run that didn't call `finish`: done, interrupted (KeyboardInterrupt) or failed."""
        if self.nothing_left:
            self._log_file.close()
            self._close_files()
        elif self.info["status"] == "running":
            status = "done" if kind is None else "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            self.finish(status)
            if status == "interrupted":
                self.display.message(f"Interrupted: {self._kept()}.")

    def _kept(self) -> str:
        steps = self.checkpoints.steps()
        return f"the last checkpoint is step_{steps[-1]}; go on with --resume" if steps else "no checkpoint was saved"

    def _start_monitors(self, monitors: list[Monitor], config: RunConfig) -> None:
        self._monitors = monitors
        self._tell_monitors(lambda monitor: monitor.start(self.folder, self.info, config))
        if monitors:
            self._save_info()

    def _tell_monitors(self, call: Callable[[Monitor], None]) -> None:
        """A monitor that fails, in whatever way, is reported once and left out from then on; the run goes on."""
        for monitor in list(self._monitors):
            try:
                call(monitor)
            except Exception as error:
                self._monitors = [other for other in self._monitors if other is not monitor]
                cause = f"{type(error).__name__}: {error}".splitlines()[0]
                self.event("monitor_failed", None, monitor=monitor.name, cause=cause)
                self.display.message(f"{monitor.name} failed ({cause}); the run goes on without it.")

    def _save_info(self) -> None:
        write_json(self.folder / "run.json", self.info)


def _rounded(value: Any) -> Any:
    """A number from a clock, to the microsecond; null if it isn't finite."""
    if not isinstance(value, float):
        return value
    return round(value, 6) if math.isfinite(value) else None
