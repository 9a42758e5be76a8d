"""RunWriter: all output of a training loop.

with RunWriter.start(config, "rl", sys.argv) as run:
    tensors, state = run.restored or fresh()
    for step in range(run.start_step, config.max_steps):
        with run.phase("sample"): ...
        run.rollouts(step, rows)
        run.log_step(step, metrics)
"""

from __future__ import annotations

import hashlib
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, get_args

from hone.config.rl import RLConfig
from hone.config.shared import RunConfig
from hone.errors import AlarmStop, UserError
from hone.redaction import redact
from hone.runs import provenance, settings
from hone.runs.alarms import Alarms, took_step
from hone.runs.budget import Budget
from hone.runs.checkpoint import Checkpoints, Tensors
from hone.runs.display import Display, make_display
from hone.runs.files import JsonlLog, new_dir, remove_dir, write_file, write_json
from hone.runs.metrics import best_step
from hone.runs.observer import Action, Observer
from hone.runs.opening import Opening
from hone.runs.outputs import Lock, writable
from hone.runs.progress import Progress
from hone.runs.provenance import resume_command
from hone.runs.rollouts import write_evaluation, write_rollouts, write_tokens
from hone.runs.signals import explain
from hone.runs.view import CARD, CHECKPOINTS, CONFIG, INFO, LOGS, PAUSED, PROCESS_LOGS, WEIGHTS, RunView, rollouts_file


class RunWriter:
    """Writes one run directory. `RunWriter.start` makes it.

    `start_step` is the first step to take. `restored` is (tensors, state) of the checkpoint for this step, or None.
    `nothing_left` is true if a resumed run has nothing left to do; the run is then unchanged.
    """

    def __init__(self, config: RunConfig, opened: Opening, observers: Sequence[Observer], lock: Lock):
        folder = config.output_dir
        self.config, self.folder = config, folder
        self.info = opened.info
        self.start_step = opened.start_step
        self.restored = opened.restored
        self.nothing_left = opened.nothing_left
        self._differs = opened.differs
        self.display, self.observers = find_display(observers), observers
        self.display.progress.task = config.task_name if isinstance(config, RLConfig) else ""
        keep = (config.ckpt.keep_last, config.ckpt.keep_interval) if config.ckpt else ()
        self.checkpoints = Checkpoints(folder / CHECKPOINTS, *keep)
        self.budget = Budget(config.budget, opened.spent)
        self.target: dict[str, Any] | None = None
        """Metric, value, target and step at which the run reached `config.stop`; None before."""
        self._stop, self._best = config.stop, config.ckpt and config.ckpt.best
        self.alarms = Alarms()
        self._started: list[Observer] = []
        """Observers that had their `before_start`, so that `at_end` must be called."""
        self._lock = lock
        (folder / PROCESS_LOGS).mkdir(exist_ok=True)
        self._metrics, self._timings, self._events, self._hashes = self._logs = [
            JsonlLog(folder / name) for name in LOGS
        ]
        self._rollouts_digest: str | None = None
        self._evaluations: dict[int, str] = {}
        self._log_file = _log_warnings(folder / PROCESS_LOGS / f"{self.info['kind']}.log")
        self._phases: dict[str, float] = {}
        self._not_finite: set[str] = set()
        self._step_began = time.perf_counter()

    @classmethod
    def start(
        cls,
        config: RunConfig,
        kind: str,
        command: list[str],
        protect: Sequence[Path] = (),
        observers: Sequence[Observer] | None = None,
        keep: Mapping[str, str] = MappingProxyType({}),
        **brought: Any,
    ) -> RunWriter:
        """Open `config.output_dir` for a run of `kind` (sft, rl). Resumes the run if the config says so.

        A new run moves an earlier one to `.previous/<its id>`. `observers` are by default a display. `keep` maps names
        of files that belong to the run to their texts. `brought` are further arguments of `Opening`. Raises UserError,
        with nothing touched, as `Opening.check` and `Opening.open` do, or if the directory can't be written.
        """
        if observers is None:
            observers = [make_display(config.display, Progress(kind, config.max_steps))]
        folder = config.output_dir
        with writable(folder), ExitStack() as undo:
            display = find_display(observers)
            observers = [display, *(one for one in observers if one is not display)]
            opening = Opening(config, kind, command, display.message, **brought)
            resuming = opening.check(protect, keep)
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder)
            undo.callback(lock.release)
            opening.open()
            run = cls(config, opening, observers, lock)
            if not run.nothing_left:
                run._begin(config, resuming, keep)
            undo.pop_all()
        if run.nothing_left:
            return run
        try:
            for observer in run.observers:
                run._started.append(observer)
                observer.before_start(run)
        except BaseException:
            run.__exit__(*sys.exc_info())
            raise
        if opening.parameters is not None:  # a guess: the weights, and a checkpoint of them with two fp32 moments
            saved = sum(p.numel() * (2 * p.element_size() + 8) for p in opening.parameters.values())
            run.budget.expect("checkpoint", saved / 5e8)  # bytes a second of a disk
        run._step_began = time.perf_counter()
        return run

    def _begin(self, config: RunConfig, resuming: bool, keep: Mapping[str, str]) -> None:
        step, folder = self.start_step, self.folder
        self.event("resume" if resuming else "start", step)
        if self._differs:
            self.mark_inexact(step, f"resumed with other {', '.join(self._differs)}")
        write_file(folder / CONFIG, settings.run_toml(config, self.info["kind"]))
        if keep:
            self.note(kept=sorted(keep))
        for name, text in keep.items():
            write_file(folder / name, text)
        self._prune()  # what a process that was killed had not got to
        for line in RunView(folder).metric_lines() if self._stop else ():
            self.look_for_target(line["step"], line)
        for name in (PAUSED, *CARD):
            (folder / name).unlink(missing_ok=True)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the step (`sample`, `grade`, `train`, …) as `time/<name>`, and show that it is under way."""
        self.display.phase(name)
        began = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            self._phases[name] = self._phases.get(name, 0.0) + seconds
            self.budget.took(name, seconds)

    @property
    def seconds_so_far(self) -> float:
        """Wall seconds since the last `log_step`: the current `time/step`."""
        return time.perf_counter() - self._step_began

    def log_step(
        self, step: int, metrics: dict[str, Any], timings: dict[str, Any] | None = None, weights: str | None = None
    ) -> None:
        """Write the lines of a step. `metrics` must have no times. Times go into `timings`, which also gets the seconds
        of each `phase`, of the step and of the run. If `metrics` is empty, neither metrics nor timings are written.

        A metric that isn't finite becomes null, and an event has its value. hashes.jsonl gets a line with `weights`,
        the fingerprint of version `step`, and the SHA-256 of metrics, rollouts and this version's evaluation. Raises
        AlarmStop if an alarm stops the run.
        """
        hashes: dict[str, Any] = {"step": step, "weights": weights, "metrics": None, "rollouts": self._rollouts_digest}
        lines = ()
        if metrics:
            seconds = {f"time/{name}": value for name, value in self._phases.items()}
            seconds |= {"time/step": self.seconds_so_far, "time/total": self.budget.seconds}
            seconds |= {} if self.budget.usd is None else {"usd/total": self.budget.usd}
            self._phases, self._step_began = {}, time.perf_counter()
            self.budget.step(seconds["time/step"], metrics.get("tokens/total"))
            finite = {"step": step} | {name: self._finite(step, name, value) for name, value in metrics.items()}
            timed = {"step": step} | {name: _rounded(value) for name, value in (seconds | (timings or {})).items()}
            hashes["metrics"] = hashlib.sha256(self._metrics.append(finite)).hexdigest()
            self._timings.append(timed)
            lines = (finite, timed)
        if (evaluation := self._evaluations.pop(step, None)) is not None:
            hashes["evals"] = evaluation
        self._hashes.append(hashes)
        self._rollouts_digest = None
        if lines:
            self.look_for_target(step, lines[0])
        if lines:  # after all is written: what an observer raises ends the run, and loses nothing of it
            for observer in self.observers:
                if (action := observer.after_step(step, *lines)) is None:
                    continue
                name, actions = type(observer).__name__, get_args(Action)
                if action not in actions:
                    raise UserError(f"{name}.after_step returned {action!r}: return None, or {', '.join(actions)}")
                self.alarms.ask(action, name)
        if self.alarms.asked == "stop" and took_step(metrics):
            cause = self.alarms.cause
            self.alarms.done()
            raise AlarmStop(step, cause, self.alarms.remedy if cause in self.alarms.actions else "")

    def look_for_target(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Set `target`, here and in run.json, if version `step` is the first to reach it."""
        value = metrics.get(self._stop.metric) if self._stop and not self.target else None
        if self._stop is None or value is None or not self._stop.reached(value):
            return
        self.target = {"metric": self._stop.metric, "value": float(value), "target": self._stop.target, "step": step}
        self.note(target=self.target)
        self.event("target", step, **{name: self.target[name] for name in ("metric", "value", "target")})

    def waited(self, seconds: float) -> None:
        """Exclude seconds of waiting for the user from `time/step`."""
        self._step_began += seconds

    def log_positions(self) -> dict[str, dict[str, Any]]:
        logs = (self._metrics, self._hashes)
        return {log.path.name: {"bytes": log.bytes, "sha256": log.sha256} for log in logs}

    def _finite(self, step: int, name: str, value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value
        if not isinstance(value, float) or math.isfinite(value):
            return value
        self.event("not_finite", step, metric=name, value=str(value))
        if name not in self._not_finite:
            self.display.message(f"{name} is {value} at step {step}: written as null (shown once; see events.jsonl).")
        self._not_finite.add(name)
        return None

    def event(self, kind: str, step: int | None, **fields: Any) -> None:
        self._events.append({"kind": kind, "step": step, "time": provenance.now()} | fields)

    def rollouts(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Write `rollouts/step_N.parquet`, from rows as `hone.runs.rollouts.group_rows` makes them."""
        self._rollouts_digest = write_rollouts(self.folder / rollouts_file(step), rows)

    def token_stats(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Write `tokens/step_N.parquet`, from rows as `hone.runs.rollouts.write_tokens` takes them."""
        write_tokens(self.folder, step, rows)

    def evaluation(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Write `evals/step_N.jsonl` of version `step`, from rows of `EvalSample.row`. Call this before `log_step`."""
        self._evaluations[step] = write_evaluation(self.folder, step, rows)

    @contextmanager
    def weights_dir(self, step: int) -> Iterator[Path]:
        """Yield a directory to export version `step` into; it becomes `weights_path(step)` when the block ends."""
        with new_dir(self.weights_path(step)) as folder:
            yield folder
        self.event("weights", step)

    def weights_path(self, step: int) -> Path:
        return self.folder / WEIGHTS / f"step_{step}"

    def save_checkpoint(self, step: int, tensors: Tensors, state: dict[str, Any], part: Path | None = None) -> Path:
        """Flush the logs, save version `step` with files of folder `part`, delete old ones. Any thread may call
        this.
        """
        for log in self._logs:
            log.sync()
        path = self.checkpoints.save(step, tensors, state, part)
        self.event("checkpoint", step)
        self._prune()
        return path

    def _prune(self) -> None:
        lines = RunView(self.folder).metric_lines() if self._best else []
        best = best_step(self._best, lines, self.checkpoints.steps()) if self._best else None
        for step in self.checkpoints.surplus(best and best[0]):
            # The weights first: killed in between, the next call finds the checkpoint and does it again.
            if self.weights_path(step).exists():
                remove_dir(self.weights_path(step))
            remove_dir(self.checkpoints.path(step))

    def note(self, **facts: Any) -> None:
        if any(self.info.get(name) != value for name, value in facts.items()):
            self.info |= facts
            self._save_info()

    def mark_inexact(self, step: int, cause: str) -> None:
        """Record in run.json why another run of this config may differ from `step` on; each cause only once."""
        if any(entry["cause"] == cause for entry in self.info["inexact"]):
            return
        self.info["inexact"].append({"step": step, "cause": cause})
        self.info["exact"] = False
        self._save_info()
        self.event("inexact", step, cause=cause)
        self.display.message(f"Another run of this config may differ from step {step} on: {cause}.")

    def finish(self, status: str, alarm: str = "") -> None:
        """Close the run with its final status. `alarm` is the alarm that stopped the run, if any."""
        assert status in ("done", "stopped", "budget", "failed", "interrupted"), status
        self.info |= {"status": status, "ended": provenance.now(), "seconds": round(self.budget.seconds, 3)}
        self.info |= {} if self.budget.usd is None else {"usd": round(self.budget.usd, 4)}
        self.info |= {"stopped_by": alarm} if alarm else {}
        with self._files() as ends:
            for observer in self._started:
                ends.callback(observer.at_end, status)
            self._save_info()  # before the rest, which may take a while

    def _files(self) -> ExitStack:
        ends = ExitStack()
        ends.callback(self._lock.release)
        for log in self._logs:
            ends.callback(log.close)
            ends.callback(log.sync)
        ends.callback(self._log_file.close)
        ends.callback(self._tell_of_warnings)
        ends.callback(logging.getLogger().removeHandler, self._log_file)
        ends.callback(logging.captureWarnings, False)
        return ends

    def _tell_of_warnings(self) -> None:
        if self._log_file.stream is not None:
            self.display.message(f"There are warnings in {self.folder}/logs/{self.info['kind']}.log.")

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End a run that didn't call `finish`, as done, interrupted (KeyboardInterrupt) or failed.

        For a problem of the machine, such as a full disk, raises a UserError that names the last checkpoint.
        """
        if self.nothing_left:
            self._files().close()
            return
        fault = explain(error, self.folder) if error else None
        if error is not None and not isinstance(error, KeyboardInterrupt) and self.info["ended"] is None:
            self.info["failure"] = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            with suppress(OSError, UnicodeError):
                self.event("failed", None, cause=self.info["failure"])
        if self.info["status"] == "running":
            status = "done" if kind is None else "interrupted" if issubclass(kind, KeyboardInterrupt) else "failed"
            # What stopped the run, such as a full disk, may stop this as well, and is what the user has to know.
            with suppress(OSError) if fault else nullcontext():
                self.finish(status)
            if status == "interrupted":
                self.display.message(f"Interrupted: {self._resume_hint()}.")
        if fault is not None:
            cause, remedy = fault
            raise UserError(f"{cause}: {remedy}; {self._resume_hint()}") from error

    def _resume_hint(self) -> str:
        steps = self.checkpoints.steps()
        if not steps:
            return "no checkpoint was saved"
        command = resume_command(self.folder, self.info)
        return f"the last checkpoint is step_{steps[-1]}; go on with: {command}"

    def _save_info(self) -> None:
        write_json(self.folder / INFO, self.info)


def find_display(observers: Sequence[Observer]) -> Display:
    return next((observer for observer in observers if isinstance(observer, Display)), Display())


def _rounded(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, 6) if math.isfinite(value) else None


class _Redacting(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _log_warnings(path: Path) -> RotatingFileHandler:
    handler = RotatingFileHandler(path, maxBytes=2**20, backupCount=1, delay=True, encoding="utf-8")
    handler.setFormatter(_Redacting("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    return handler
