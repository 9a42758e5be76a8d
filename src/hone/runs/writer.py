"""RunWriter: all that a training loop tells the world, in one place.

with RunWriter.start(config, "rl", sys.argv) as run:
    tensors, state = run.restore() or fresh()
    for step in range(run.start_step, config.max_steps):
        with run.phase("sampling"): ...
        run.rollouts(step, rows)
        run.log_step(step, metrics)
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs import provenance, settings
from hone.runs.checkpoint import Checkpoints, Tensors
from hone.runs.display import Display, make_display
from hone.runs.files import JsonlLog, new_dir, write_file, write_json
from hone.runs.logs import LogFile
from hone.runs.monitors import Monitor, make_monitors
from hone.runs.outputs import FORMAT, Lock, check, clear, run_info
from hone.runs.rollback import finish_roll_back, roll_back
from hone.runs.rollouts import write_rollouts


class RunWriter:
    """Writes one run directory. Made by `RunWriter.start`; `start_step` is the first step to take."""

    def __init__(self, folder: Path, info: dict[str, Any], config: RunConfig, display: Display, lock: Lock):
        self.folder = folder
        self.info = info
        self.start_step = 0
        self.display = display
        self.checkpoints = Checkpoints(folder / "checkpoints", config.ckpt.keep if config.ckpt else None)
        self._restored: tuple[Tensors, dict[str, Any]] | None = None
        self._lock = lock
        self._monitors: list[Monitor] = []
        for name in ("logs", "rollouts"):
            (folder / name).mkdir(exist_ok=True)
        self._metrics, self._timings, self._events = (
            JsonlLog(folder / f"{name}.jsonl") for name in ("metrics", "timings", "events")
        )
        self._log_file = LogFile(folder / "logs" / f"{info['kind']}.log")
        self._phases: dict[str, float] = {}
        self._step_began = time.perf_counter()

    # ---- beginning -------------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls, config: RunConfig, kind: str, command: list[str], protect: list[Path] | None = None, out: Any = None
    ) -> RunWriter:
        """Open `config.output_dir` for a run of `kind` (sft, rl), resuming if the config says so.

        A fresh start moves an earlier run of hone to `.previous/<its id>`. UserError, with nothing touched, if the
        directory holds foreign files or any of `protect`: the run's own model, data and other sources. `out` is the
        text file the display writes to, by default standard output.
        """
        monitors = make_monitors(config)  # first: a missing package is told before anything is moved
        text = settings.run_toml(config)
        folder = config.output_dir
        resuming = config.resume is not None and run_info(folder) is not None
        if not resuming:
            check(folder, protect or [])
            _refuse_missing_step(config)
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(folder)
        display = make_display(config.display, kind, config.max_steps, out)
        try:
            run = (
                cls._resume(config, kind, command, display, lock)
                if resuming
                else cls._fresh(config, kind, command, display, lock)
            )
            write_file(folder / "config.toml", text)
        except BaseException:
            lock.release()
            raise
        run._start_monitors(monitors, config)
        display.start(run.start_step)
        return run

    @classmethod
    def _fresh(cls, config: RunConfig, kind: str, command: list[str], display: Display, lock: Lock) -> RunWriter:
        folder = config.output_dir
        earlier = clear(folder)
        info = {
            "format": FORMAT,
            "id": provenance.new_id(),
            "kind": kind,
            "status": "running",
            "exact": True,
            "inexact": [],
        }
        info |= {
            "seed": config.seed,
            "command": command,
            "started": provenance.now(),
            "ended": None,
            "pid": os.getpid(),
        }
        info |= {"git": provenance.git(), "versions": provenance.versions(), "hardware": provenance.hardware()}
        info |= {"threads": provenance.threads(), "resumes": [], "wandb_id": None}
        write_json(folder / "run.json", info)
        run = cls(folder, info, config, display, lock)
        run.event("start", 0)
        if earlier is not None:
            display.message(f"The earlier run in {folder} is now in {earlier}.")
        if config.resume is not None:
            display.message(f"Nothing to resume in {folder}: starting at step 0.")
        return run

    @classmethod
    def _resume(cls, config: RunConfig, kind: str, command: list[str], display: Display, lock: Lock) -> RunWriter:
        folder = config.output_dir
        info = run_info(folder)
        assert info is not None and config.resume is not None
        if info["kind"] != kind:
            raise UserError(
                f"{folder} holds a run of `hone {info['kind']}`, which `hone {kind}` can't resume: "
                "choose another --output-dir"
            )
        finish_roll_back(folder)
        checkpoints = Checkpoints(folder / "checkpoints")
        step, warnings = config.resume.step, []
        if step is None:
            step, warnings = checkpoints.newest()
        elif (step != 0 or checkpoints.path(0).exists()) and (problems := checkpoints.problems(step)):
            raise UserError(f"--resume.step {step}: {problems[0]}; {checkpoints.remedy(but=step)}")
        restored = checkpoints.load(step) if step is not None and checkpoints.path(step).exists() else None
        place = roll_back(folder, step or 0)
        run = cls(folder, info, config, display, lock)
        run.start_step = step or 0
        run._restored = restored
        run._note_resume(config, command)
        for warning in warnings:
            display.message(f"Warning: {warning}.")
        display.message(
            f"Resuming {folder} at step {run.start_step}."
            if restored
            else f"No complete checkpoint in {folder}: starting at step 0."
        )
        if place is not None:
            display.message(f"What it had written after that is now in {place}.")
        return run

    def _note_resume(self, config: RunConfig, command: list[str]) -> None:
        """Record the resume in run.json, and whatever about it makes the run other than one that never stopped."""
        info, step = self.info, self.start_step
        here = {"versions": provenance.versions(), "hardware": provenance.hardware(), "threads": provenance.threads()}
        differs = (
            settings.changed(self.folder / "config.toml", config) if (self.folder / "config.toml").exists() else []
        )
        differs += [name for name, value in here.items() if value != info[name]]
        info["inexact"] = [entry for entry in info["inexact"] if entry["step"] < step or entry.get("lasting")]
        info["resumes"].append(
            {"step": step, "time": provenance.now(), "command": command, "git": provenance.git()} | here
        )
        info |= {"status": "running", "ended": None, "pid": os.getpid(), "exact": not info["inexact"]}
        self._save_info()
        self.event("resume", step)
        if differs:
            self.mark_inexact(step, f"resumed with another {', '.join(differs)}", lasting=True)

    def _start_monitors(self, monitors: list[Monitor], config: RunConfig) -> None:
        self._monitors = monitors
        for monitor in list(monitors):
            self._guard(monitor, lambda monitor=monitor: monitor.start(self.folder, self.info, config))
        self._save_info()

    def restore(self) -> tuple[Tensors, dict[str, Any]] | None:
        """The (tensors, state) of checkpoint `start_step`, None for a run from the beginning. Handed out once."""
        restored, self._restored = self._restored, None
        return restored

    # ---- each step -------------------------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the step (`sampling`, `grading`, `training`, …) as `time/<name>`, and show it meanwhile."""
        self.display.phase(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - began

    def log_step(self, step: int, metrics: dict[str, Any], timings: dict[str, Any] | None = None) -> None:
        """Write the step's lines. Nothing in `metrics` may come from a clock; that goes into `timings`.

        `time/<phase>` of each `phase` since the last call and `time/step`, in seconds, are added to the timings. A
        metric that isn't finite becomes null, with an event that says what it was.
        """
        seconds = {f"time/{name}": value for name, value in self._phases.items()}
        seconds["time/step"] = self.seconds_so_far
        self._phases, self._step_began = {}, time.perf_counter()
        metrics_line = {"step": step} | {name: self._number(step, name, value) for name, value in metrics.items()}
        timings_line = {"step": step} | {name: _rounded(value) for name, value in (seconds | (timings or {})).items()}
        self._metrics.append(metrics_line)
        self._timings.append(timings_line)
        self.display.step(step, metrics_line, timings_line)
        for monitor in list(self._monitors):
            self._guard(monitor, lambda monitor=monitor: monitor.log(step, metrics_line, timings_line))

    @property
    def seconds_so_far(self) -> float:
        """Wall seconds since the last `log_step`: what `time/step` would be now."""
        return time.perf_counter() - self._step_began

    def _number(self, step: int, name: str, value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value
        if isinstance(value, float) and not math.isfinite(value):
            self.event("not_finite", step, metric=name, value=str(value))
            return None
        return value

    def event(self, kind: str, step: int | None, **fields: Any) -> None:
        """Write one line to events.jsonl, with the time."""
        self._events.append({"kind": kind, "step": step, "time": provenance.now()} | fields)

    def rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Write `rollouts/step_N.parquet`; rows as `hone.runs.rollouts.group_rows` makes them."""
        write_rollouts(self.folder / "rollouts" / f"step_{step:06d}.parquet", rows)

    @contextmanager
    def weights_dir(self, step: int) -> Iterator[Path]:
        """A directory to export version `step` into; it becomes `weights/step_N` when the block ends."""
        with new_dir(self.weights_path(step)) as folder:
            yield folder
        self.event("weights", step)

    def weights_path(self, step: int) -> Path:
        return self.folder / "weights" / f"step_{step}"

    def save_checkpoint(self, step: int, tensors: Tensors, state: dict[str, Any]) -> Path:
        """Save version `step` (after `step` updates, before step `step`), flush the logs first, delete surplus ones."""
        for log in (self._metrics, self._timings, self._events):
            log.sync()
        path = self.checkpoints.save(step, tensors, state)
        self.event("checkpoint", step)
        self.checkpoints.prune()
        return path

    def mark_inexact(self, step: int, cause: str, lasting: bool = False) -> None:
        """Say in run.json that, from `step` on, another run of this config may give other numbers, and why.

        A resume from before `step` takes it back, unless it is `lasting`.
        """
        entry = {"step": step, "cause": cause} | ({"lasting": True} if lasting else {})
        if entry in self.info["inexact"]:
            return
        self.info["inexact"].append(entry)
        self.info["exact"] = False
        self._save_info()
        self.event("inexact", step, cause=cause)

    # ---- ending ----------------------------------------------------------------------------------------------------

    def finish(self, status: str) -> None:
        """Close the run with its last status: done, stopped (by a signal, saved), failed or interrupted."""
        assert status in ("done", "stopped", "failed", "interrupted"), status
        for monitor in list(self._monitors):
            self._guard(monitor, lambda monitor=monitor: monitor.finish(status))
        self.display.close()
        self._log_file.close()
        self.info |= {"status": status, "ended": provenance.now()}
        self._save_info()
        for log in (self._metrics, self._timings, self._events):
            log.sync()
            log.close()
        self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Ends a run that didn't call `finish`: done, interrupted (KeyboardInterrupt) or failed."""
        if self.info["status"] == "running":
            status = "done" if kind is None else "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            self.finish(status)

    def _guard(self, monitor: Monitor, call: Any) -> None:
        """A monitor that fails is reported once and left out from then on; the run goes on."""
        try:
            call()
        except Exception as error:
            self._monitors = [other for other in self._monitors if other is not monitor]
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            self.event("monitor_failed", None, monitor=monitor.name, cause=cause)
            self.display.message(f"{monitor.name} failed ({cause}); the run goes on without it.")

    def _save_info(self) -> None:
        write_json(self.folder / "run.json", self.info)


def _rounded(value: Any) -> Any:
    return (
        round(value, 6)
        if isinstance(value, float) and math.isfinite(value)
        else (None if isinstance(value, float) else value)
    )


def _refuse_missing_step(config: RunConfig) -> None:
    if config.resume is not None and config.resume.step:
        raise UserError(f"--resume.step {config.resume.step}: there is no run in {config.output_dir} to resume")
