"""Runs what a study needs, side by side, each in a process of its own; what is done already is not done again."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from hone.config.dump import to_toml
from hone.config.eval import EvalConfig
from hone.config.rl import RLConfig
from hone.config.study import StudyConfig
from hone.environments.workers import cores
from hone.runs.files import JsonlLog, read_lines, write_file
from hone.runs.outputs import run_info
from hone.runs.progress import duration
from hone.runs.reader import Run
from hone.studies.cells import Cell, Stage, runs_of, task_of

SECONDS = "seconds.jsonl"
"""Log of the study: how long each of its commands took, by the clock and by the processor."""
MAX_TOKENS = 256
"""New tokens of a completion that is evaluated, where neither the study nor RL says how many."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """A command of the study: `hone KIND @ CONFIG`, in `folder`. `needs` is the task whose weights it begins with.

    `title` says for which cell it is; others may share it.
    """

    id: str
    title: str
    kind: str
    folder: Path
    config: Any
    needs: str | None

    @property
    def done(self) -> bool:
        """Whether its folder holds all that it is to make."""
        info = run_info(self.folder)
        return info is not None and info["status"] == "done" and (self.kind == "eval" or bool(weights(self.folder)))


@dataclass
class Outcome:
    """What became of the tasks: those that are done, and why others are not."""

    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def tasks_of(study: StudyConfig, cells: list[Cell]) -> dict[str, Task]:
    """Return what has to be done, by id, each after what it needs; equal stages of cells once."""
    tasks: dict[str, Task] = {}
    for index in range(len(study.seed_list)):
        for cell in cells:
            last = cell.stages[index]
            for stage in runs_of(last):
                needs = stage.after and stage.after.id
                title, folder = f"{stage.kind} of {cell.name}, seed {stage.seed}", study.output_dir / "runs" / stage.id
                tasks.setdefault(stage.id, Task(stage.id, title, stage.kind, folder, stage.config, needs))
            evaluation = evaluation_of(study, cells, last, f"eval of {cell.name}, seed {last.seed}")
            tasks.setdefault(evaluation.id, evaluation)
    return tasks


def evaluation_of(study: StudyConfig, cells: list[Cell], stage: Stage, title: str = "") -> Task:
    """Return the task that evaluates what a stage has made."""
    one, env = study.eval, task_of(study, cells)
    limit = one.max_tokens or (
        stage.config.orchestrator.sampling.max_tokens if isinstance(stage.config, RLConfig) else None
    )
    config = EvalConfig(
        env=env.id,
        env_args=env.args,
        template=env.template,
        num_examples=one.num_examples,
        rollouts_per_example=one.rollouts_per_example,
        max_tokens=limit or _tokens_of_rl(cells) or MAX_TOKENS,
        temperature=one.temperature,
        threads=study.threads,
        precision=stage.config.precision,
    )
    digest = hashlib.sha256(to_toml(config).encode()).hexdigest()[:8]
    name = f"{stage.id}-{digest}"
    return Task(f"eval-{name}", title, "eval", study.output_dir / "evals" / name, config, stage.id)


def _tokens_of_rl(cells: list[Cell]) -> int | None:
    """Return the most new tokens that any cell's RL samples, so that SFT alone is not cut earlier."""
    configs = [stage.config for cell in cells for stage in cell.stages]
    found = [config.orchestrator.sampling.max_tokens for config in configs if isinstance(config, RLConfig)]
    return max((limit for limit in found if limit is not None), default=None)


class Runner:
    """Runs tasks, as many at a time as the study allows. `say` gets a line for each that ends, `status` what is on."""

    def __init__(self, study: StudyConfig, tasks: dict[str, Task], say: Say, status: Say) -> None:
        self.study, self.tasks, self.say, self.status = study, tasks, say, status
        self.jobs = study.jobs or max(1, cores() // study.threads)
        self.outcome = Outcome(done={task.id for task in tasks.values() if task.done})
        study.output_dir.mkdir(parents=True, exist_ok=True)
        self._log = JsonlLog(study.output_dir / SECONDS)
        self._began, self._processes = time.monotonic(), dict[str, subprocess.Popen[bytes]]()

    def run(self) -> Outcome:
        """Run all that is left. Ctrl-C ends what is at work, and raises KeyboardInterrupt."""
        outcome, active = self.outcome, dict[Future[str | None], Task]()
        waiting = [task for name, task in self.tasks.items() if name not in outcome.done]
        if outcome.done and waiting:
            self.say(f"{len(outcome.done)} of {len(self.tasks)} runs are done already.")
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                while waiting or active:
                    for task in list(self._ready(waiting, self.jobs - len(active))):
                        waiting.remove(task)
                        active[pool.submit(self._do, task)] = task
                    if not active:
                        break  # the budget is used up, or what is left needs what failed
                    self._show(active.values())
                    for future in wait(active, timeout=1.0, return_when=FIRST_COMPLETED).done:
                        self._ended(active.pop(future), future.result())
            except BaseException:
                for process in self._processes.values():
                    with suppress(ProcessLookupError):
                        process.send_signal(signal.SIGTERM)
                raise
        for task in waiting:
            if task.needs in outcome.failed:
                outcome.failed[task.id] = f"it needs {self.tasks[task.needs].title}, which failed"
            else:
                outcome.left.append(task.id)
        return outcome

    def _ready(self, waiting: list[Task], room: int) -> Iterator[Task]:
        """Yield the next tasks that may begin."""
        budget = self.study.budget
        if budget is not None and time.monotonic() - self._began >= 3600 * budget.hours:
            return
        ready = (task for task in waiting if task.needs is None or task.needs in self.outcome.done)
        for task, _ in zip(ready, range(room), strict=False):
            yield task

    def _do(self, task: Task) -> str | None:
        """Run one task; return why it failed, None if it did not."""
        shutil.rmtree(task.folder, ignore_errors=True)  # of a study that was killed
        config, log = task.config, task.folder.parent / f"{task.id}.log"
        if task.kind != "eval":
            config = config.model_copy(update={"output_dir": task.folder, "display": "plain"})
        if task.needs is not None:
            begun = str(weights(self.tasks[task.needs].folder))
            name = begun if task.kind == "eval" else config.model.model_copy(update={"name": begun})
            config = config.model_copy(update={"model": name})
        if task.kind == "eval":
            config = config.model_copy(update={"output_dir": task.folder})
        task.folder.parent.mkdir(parents=True, exist_ok=True)
        file = task.folder.parent / f"{task.id}.toml"
        write_file(file, to_toml(config))
        argv = [sys.executable, "-m", "hone.cli", task.kind, "@", str(file)]
        environ = os.environ | {"OMP_NUM_THREADS": str(self.study.threads)}
        began = time.monotonic()
        with open(log, "wb") as out:
            process = subprocess.Popen(
                argv, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environ
            )
            self._processes[task.id] = process
            _, code, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
        del self._processes[task.id]
        if process.returncode == 0 and task.done:
            clock, processor = time.monotonic() - began, usage.ru_utime + usage.ru_stime
            line = {"id": task.id, "kind": task.kind, "seconds": round(clock, 2), "processor": round(processor, 2)}
            self._log.append(line)
            return None
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return f"exit code {process.returncode}: {lines[-1] if lines else 'it printed nothing'} ({log})"

    def _ended(self, task: Task, problem: str | None) -> None:
        outcome = self.outcome
        if problem is None:
            outcome.done.add(task.id)
            self.say(f"{len(outcome.done)}/{len(self.tasks)} {task.title}: done{self._left()}")
        else:
            outcome.failed[task.id] = problem
            self.say(f"{task.title}: FAILED, {problem}")

    def _show(self, active: Any) -> None:
        words = "; ".join(task.title for task in active)
        self.status(f"{len(self.outcome.done)} of {len(self.tasks)} runs done{self._left()}; at work: {words}")

    def _left(self) -> str:
        """Return an estimate of the time left, by what such tasks took on average; empty without one."""
        took: dict[str, list[float]] = {}
        for line in read_lines(self.study.output_dir / SECONDS):
            took.setdefault(line["kind"], []).append(line["seconds"])
        todo = [task for name, task in self.tasks.items() if name not in self.outcome.done | self.outcome.failed.keys()]
        if not todo or any(task.kind not in took for task in todo):
            return ""
        return f", about {duration(sum(mean(took[task.kind]) for task in todo) / self.jobs)} left"


def weights(folder: Path) -> Path | None:
    """Return the last weights of a run; None if it has none."""
    found = Run(folder).weights()
    return found[max(found)] if found else None


def rewards(folder: Path, metric: str) -> dict[int, float]:
    """Return of each example of an evaluation the mean of its completions: their rewards, or whether right."""
    values: dict[int, list[float]] = {}
    for row in Run(folder).eval_rows():
        value = row["reward"] if metric == "reward" else float(row["outcome"] == "correct")
        if row["reward"] is not None:
            values.setdefault(row["example"], []).append(float(value))
    return {index: mean(found) for index, found in values.items()}
