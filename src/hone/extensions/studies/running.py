"""Runs the tasks of a study in separate processes, several at a time; finished tasks are not repeated."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from hone.config.base import changed
from hone.config.dump import to_toml
from hone.config.eval import EvalConfig
from hone.config.rl import RLConfig
from hone.config.shared import ResumeConfig
from hone.environments.workers import cores
from hone.extensions.studies.cells import Cell, Stage, runs_of, task_of
from hone.extensions.studies.config import StudyConfig
from hone.hardware import visible_gpus
from hone.loops.child import Child, Log
from hone.processes import end_all
from hone.runs.files import JsonlLog, write_file
from hone.runs.progress import duration
from hone.runs.reader import Run
from hone.runs.view import INFO, read_lines, run_info

SECONDS = "seconds.jsonl"
"""Log of the study: wall-clock and CPU seconds of each command."""
MAX_TOKENS = 256
"""Most new tokens of an evaluated completion, if neither the study nor RL sets a limit."""
Say = Callable[[str], None]
_TICK = 0.1
_PORTS = 100
"""Distance between the ports of two simultaneous runs."""


@dataclass(frozen=True)
class Task:
    """A command of the study, `hone KIND @ CONFIG`. It writes into `folder`, and starts from weights of `needs`."""

    id: str
    title: str
    kind: str
    folder: Path
    config: Any
    needs: str | None

    @property
    def done(self) -> bool:
        info = run_info(self.folder)
        return info is not None and info["status"] == "done" and (self.kind == "eval" or bool(weights(self.folder)))


@dataclass
class Outcome:
    """Ids of tasks that are `done`, that `failed` (with the reason), and that are `left` to start."""

    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


class Tasks(dict[str, Task]):
    """Tasks by id, each after the task that it needs. Equal stages of several cells are one task."""

    def __init__(self, study: StudyConfig, cells: list[Cell]) -> None:
        super().__init__()
        self._study, self._evaluation = study, _evaluation(study, cells)
        for index in range(study.seeds):
            for cell in cells:
                last = cell.stages[index]
                for stage in runs_of(last):
                    title = f"{stage.kind} of {cell.name}, seed {stage.seed}"
                    needs = stage.after and stage.after.id
                    task = Task(stage.id, title, stage.kind, self.folder(stage), stage.config, needs)
                    self.setdefault(stage.id, task)
                evaluation = self.evaluation(cell, last)
                self.setdefault(evaluation.id, evaluation)

    def folder(self, stage: Stage) -> Path:
        return self._study.output_dir / "runs" / stage.id

    def evaluation(self, cell: Cell, stage: Stage) -> Task:
        title, config = f"eval of {cell.name}, seed {stage.seed}", self._evaluation
        config = changed(config, {"env_args": config.env_args | cell.eval_args})
        name = f"{stage.id}-{hashlib.sha256(to_toml(config).encode()).hexdigest()[:8]}"
        return Task(f"eval-{name}", title, "eval", self._study.output_dir / "evals" / name, config, stage.id)


def _evaluation(study: StudyConfig, cells: list[Cell]) -> EvalConfig:
    env, one = task_of(study, cells), study.eval
    configs = [stage.config for cell in cells for stage in cell.stages]
    limits = [config.orchestrator.sampling.max_tokens for config in configs if isinstance(config, RLConfig)]
    return EvalConfig(
        env=env.id,
        env_args=env.args,
        template=env.template,
        num_examples=one.num_examples,
        rollouts_per_example=one.rollouts_per_example,
        max_tokens=one.max_tokens or max((limit for limit in limits if limit), default=MAX_TOKENS),
        temperature=one.temperature,
        threads=study.threads,
        precision=one.precision,
        grading=one.grading,
    )


@dataclass
class _Active:
    task: Task
    child: Child
    log: Log
    began: float
    place: int
    """Slot of this task among the running tasks."""


class Runner:
    """Runs up to `jobs` tasks at a time. `say` gets a line for each task that ended, `status` the running tasks."""

    def __init__(self, study: StudyConfig, tasks: dict[str, Task], say: Say, status: Say) -> None:
        self.study, self.tasks, self.say, self.status = study, tasks, say, status
        self.jobs = study.jobs or (1 if visible_gpus() else max(1, cores() // study.threads))
        self.outcome = Outcome(done={task.id for task in tasks.values() if task.done})
        self._waiting = [task for name, task in tasks.items() if name not in self.outcome.done]
        self._active: list[_Active] = []
        self._began = time.monotonic()

    def run(self) -> None:
        """Run all remaining tasks. An error or Ctrl-C ends the running tasks."""
        outcome = self.outcome
        if outcome.done and self._waiting:
            self.say(f"{len(outcome.done)} of {len(self.tasks)} runs are done already.")
        try:
            while self._start_what_may() or self._active:
                running = "; ".join(active.task.title for active in self._active)
                self.status(f"{len(outcome.done)} of {len(self.tasks)} runs done{self._left()}; running: {running}")
                time.sleep(_TICK)
                self._take_what_ended()
        except BaseException:
            end_all([active.child for active in self._active])  # with checkpoints on, a run saves its state
            raise
        finally:
            for task in self._waiting:
                if task.needs in outcome.failed:
                    outcome.failed[task.id] = f"it needs {self.tasks[task.needs].title}, which failed"
                else:
                    outcome.left.append(task.id)

    def _start_what_may(self) -> int:
        """Start the ready tasks unless the budget is used up; return the number of started tasks."""
        budget, started = self.study.budget, 0
        if budget is not None and time.monotonic() - self._began >= 3600 * budget.hours:
            return 0
        for task in list(self._waiting):
            if len(self._active) == self.jobs:
                break
            if task.needs is None or task.needs in self.outcome.done:
                self._waiting.remove(task)
                started += 1
                try:
                    self._active.append(self._start(task))
                except OSError as error:
                    self._failed(task, f"it can't be started ({error})")
        return started

    def _start(self, task: Task) -> _Active:
        used = {active.place for active in self._active}
        place = next(number for number in range(self.jobs) if number not in used)
        config, begun = beside(task.config, place), run_info(task.folder) is not None
        update: dict[str, Any] = {"output_dir": task.folder}
        if task.needs is not None:
            update["model" if task.kind == "eval" else "model.name"] = str(weights(self.tasks[task.needs].folder))
        if task.kind != "eval" and begun and config.ckpt is not None:
            update["resume"] = ResumeConfig()
        else:
            shutil.rmtree(task.folder, ignore_errors=True)  # left by a killed study
        task.folder.parent.mkdir(parents=True, exist_ok=True)
        file, written = (task.folder.parent / f"{task.id}.{end}" for end in ("toml", "log"))
        write_file(file, to_toml(changed(config, update)))
        written.unlink(missing_ok=True)
        command, log = [sys.executable, "-m", "hone.cli", task.kind, "@", str(file)], Log(written)
        environ = {**os.environ, "OMP_NUM_THREADS": str(self.study.threads)}
        return _Active(task, Child(task.kind, None, command, environ, log), log, time.monotonic(), place)

    def _take_what_ended(self) -> None:
        for active in list(self._active):
            before = _processor()
            code = active.child.poll()
            if code is None:
                continue
            self._active.remove(active)
            task, took = active.task, {"seconds": time.monotonic() - active.began, "processor": _processor() - before}
            if code == 0 and task.done:
                line = {"id": task.id, "kind": task.kind} | {name: round(value, 2) for name, value in took.items()}
                log = JsonlLog(self.study.output_dir / SECONDS)
                log.append(line)
                log.close()
                self.outcome.done.add(task.id)
                self.say(f"{len(self.outcome.done)}/{len(self.tasks)} {task.title}: done{self._left()}")
                continue
            if task.kind == "eval":  # an evaluation writes results even if too many completions could not be graded
                (task.folder / INFO).unlink(missing_ok=True)
            self._failed(task, f"it {active.child.cause}, see {task.folder.parent / task.id}.log")

    def _failed(self, task: Task, problem: str) -> None:
        self.outcome.failed[task.id] = problem
        self.say(f"{task.title}: FAILED, {problem}")

    def _left(self) -> str:
        """Return the estimated time left, from the mean time of each kind of task; "" if it is unknown."""
        took: dict[str, list[float]] = {}
        for line in read_lines(self.study.output_dir / SECONDS):
            took.setdefault(line["kind"], []).append(line["seconds"])
        todo = [*self._waiting, *(active.task for active in self._active)]
        if not todo or any(task.kind not in took for task in todo):
            return ""
        return f", about {duration(sum(mean(took[task.kind]) for task in todo) / self.jobs)} left"


def beside(config: Any, place: int) -> Any:
    """Return the config of a run in slot `place`: each slot has separate server ports."""
    if not isinstance(config, RLConfig) or config.orchestrator.client.base_url:
        return config
    if config.mode not in ("split", "cluster") and config.trainer.ranks == config.inference.replicas == 1:
        return config
    return changed(config, {"inference.port": config.inference.port + _PORTS * place})


def _processor() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def weights(folder: Path) -> Path | None:
    found = Run(folder).weights()
    return found[max(found)] if found else None


def values_of(folder: Path, metric: str) -> dict[int, float]:
    """Return, for each example, the mean reward of its graded completions, or for `correct` the share of right ones."""
    values: dict[int, list[float]] = {}
    for row in Run(folder).eval_rows():
        if row["reward"] is not None:
            value = row["reward"] if metric == "reward" else float(row["outcome"] == "correct")
            values.setdefault(row["example"], []).append(float(value))
    return {example: mean(found) for example, found in values.items()}
