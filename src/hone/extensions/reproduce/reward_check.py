"""Grade recorded completions again while a run trains. A reward that changes, or is random, raises an alarm.

A check grades completions of three steps: the first, a random one, and the last. If a function remembers earlier calls,
a fresh process gives other scores at the last step; if it reads the clock or a file, scores of earlier steps differ. A
check runs in a thread and a separate process, so that no step waits for it. Functions that no other process can
import run in the run's process, between two steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from hone import rng
from hone.config.rl import RLConfig
from hone.config.shared import RunConfig
from hone.environments import Environment
from hone.errors import first_line
from hone.extensions.reproduce.regrade import Grader, Pair, Recorded, read_step, spread_out
from hone.pages import visible
from hone.runs import Run
from hone.runs.alarms import in_words, took_step
from hone.runs.observer import Finding, Observer
from hone.runs.view import RunView
from hone.runs.writer import RunWriter
from hone.types import Score

REGRADED = "regraded"
EVERY = 10
"""Steps between checks; a check is skipped while another is running."""
COMPLETIONS, FEW = 8, 2
"""Completions of a step to grade again: in a separate process, and in this process. Whole groups may have more."""
SHARE = 4
"""At most every fourth completion of a step is graded again."""
ROWS = 16
"""Examples to search for values that JSON can't hold."""
LAST_SECONDS, LEFT_SECONDS = 10.0, 0.5
"""Seconds to wait for a running check: at the end of a run that is done, and before processes are closed."""
CAUSE = "completions that were graded again got other scores"
ADVICE = (
    "let the reward depend on the completion and its example alone: no clock, no memory, and random numbers only from "
    "the parameter `rng`; `hone regrade` grades the whole run again"
)


@dataclass(frozen=True)
class Checked:
    """The result of checking task `name`: number of `compared` completions, the `differing` ones, or the `problem`."""

    name: str
    compared: int = 0
    differing: Sequence[Pair] = ()
    problem: str = ""


def observer(config: RunConfig, by_program: bool) -> Observer | None:
    return RewardCheck() if isinstance(config, RLConfig) else None


class RewardCheck(Observer):
    """Grades some completions of a run again, and records the result as `regraded` in run.json.

    The new score must equal the recorded one, unless one of the gradings failed.
    """

    def check(self, training: Any) -> None:
        self._training = training

    def before_start(self, run: RunWriter) -> None:
        self._run, self._seed = run, int(self._training.config.seed)
        self._graders: dict[str, Grader] = {}
        self._apart: dict[str, Environment] = {}
        """The tasks that have a separate process."""
        self._found: SimpleQueue[Checked] = SimpleQueue()
        self._thread: Thread | None = None
        self._ended = Event()
        self._last = self._checked = -1
        if run.alarms.actions.get(REGRADED) == "off":
            return
        run.alarms.restore(REGRADED, RunView(run.folder).events(), run.start_step)
        self._record = {"completions": 0, "differing": 0} | run.info.get("regraded", {}) | {"left_out": ""}
        for name, env in self._training.envs.items():
            if why := not_checked(env):
                self._leave_out(name, why)
                continue
            if (apart := env.apart()) is not None:
                self._apart[name] = apart
            self._graders[name] = Grader(apart or env)

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        if not self._graders or not took_step(metrics):
            return
        if self._last < 0:  # not earlier: a process needs the variables that are set when the run is open
            for env in self._apart.values():
                env.start_workers(1)
        self._last = step
        self._take()
        if (step + 1) % EVERY == 0:
            self._begin()

    def at_end(self, status: str) -> None:
        try:
            if status in ("done", "budget") and self._is_idle(LAST_SECONDS) and self._checked < self._last:
                self._begin()
                self._is_idle(LAST_SECONDS)
            self._take()
        except KeyboardInterrupt:
            pass
        finally:
            self._ended.set()
            if self._is_idle(LEFT_SECONDS):  # else the thread closes them
                self._close()

    def _is_idle(self, seconds: float = 0.0) -> bool:
        """Wait up to `seconds` for a running check. Return True if no check is running after that."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _close(self) -> None:
        for env in self._apart.values():
            env.close_workers()

    def _begin(self) -> None:
        if not self._is_idle():
            return
        self._take()  # a task that could not be graded is not tried again
        step = self._checked = self._last
        here = [name for name in self._graders if name not in self._apart]
        apart = [name for name in self._graders if name in self._apart]
        if apart:
            self._thread = Thread(target=self._check_apart, args=(apart, step), daemon=True)
            self._thread.start()
        for name in here:
            self._found.put(self._check(name, step))
        self._take()

    def _check_apart(self, names: Sequence[str], step: int) -> None:
        for name in names:
            self._found.put(self._check(name, step))
        if self._ended.is_set():
            self._close()

    def _check(self, name: str, step: int) -> Checked:
        compared, differing = 0, list[Pair]()
        try:
            for recorded in self._drawn(name, step):
                if self._ended.is_set():
                    break
                pairs = self._graders[name].grade(recorded, self._seed)
                pairs = [one for one in pairs if not (failed(one.recorded.score) or failed(one.score))]
                compared += len(pairs)
                differing += [one for one in pairs if not one.same]
        except Exception as error:  # of the task, or of what starts its process: no reason to end the run
            return Checked(name, problem=visible(f"{type(error).__name__}: {first_line(error)}", 200))
        return Checked(name, compared, differing)

    def _drawn(self, name: str, step: int) -> list[list[Recorded]]:
        run, rubric = Run(self._run.folder), self._graders[name].env.rubric
        generator = rng.stream(self._seed, "regraded", step, name)
        if not (steps := [one for one in run.rollout_steps() if one <= step]):
            return []
        chosen = sorted({steps[0], steps[int(generator.integers(len(steps)))], steps[-1]})
        most, whole = COMPLETIONS if name in self._apart else FEW, bool(rubric.group_funcs)
        drawn = []
        for one in chosen:
            recorded = read_step(run, one, name, rubric.takes_ids)
            if not whole:
                recorded = [sample for sample in recorded if not failed(sample.score)]
            count = min(most, math.ceil(len(recorded) / SHARE))
            drawn.append(spread_out(recorded, count, whole, generator))
        return drawn

    def _take(self) -> None:
        while not self._found.empty():
            found = self._found.get()
            if found.problem:
                del self._graders[found.name]
                self._leave_out(found.name, found.problem)
                self._run.display.message(f"Completions are no longer graded again: {found.problem}")
                continue
            self._record["completions"] += found.compared
            self._record["differing"] += len(found.differing)
            self._run.note(regraded=dict(self._record))
            if found.differing:
                self._report(found)

    def _leave_out(self, name: str, why: str) -> None:
        known = self._record["left_out"]
        self._record["left_out"] = "; ".join(filter(None, [known, f"{name}: {why}" if name else why]))
        self._run.note(regraded=dict(self._record))

    def _report(self, found: Checked) -> None:
        """Raise the alarm, unless it is active, and mark the run as inexact."""
        first = min(found.differing, key=lambda pair: pair.recorded.step)
        one, task = first.recorded, f" of {found.name}" if found.name else ""
        evidence = (
            f"{len(found.differing)} of {found.compared} recorded completions{task} got another score when they were "
            f"graded again: {one.reply.sample_id} of step {one.step} (example {one.example.id}) had "
            f"{_words(one.score)}, and now {_words(first.score)}"
        )
        finding = Finding(len(found.differing) / found.compared, 0.0, evidence, ADVICE)
        if (event := self._run.alarms.raised(self._last, REGRADED, finding)) is not None:
            self._run.event("alarm", **event)
            self._run.display.message(in_words(event))
        self._run.mark_inexact(one.step, CAUSE)


def failed(score: Score) -> bool:
    return score.outcome.is_failure


def _words(score: Score) -> str:
    return f"{score.reward:.6g} ({score.outcome})"


def not_checked(env: Environment) -> str | None:
    """Return why completions of this task can't be graded again as they were; None if they can."""
    if env.why_not_graded:
        return env.why_not_graded
    if env.has_own_process:
        return "a library's process grades them"
    if Grader(env).reads_state or (env.keeps_state and env.rubric.group_funcs):
        return "reward functions read the state of a conversation, which no record has"
    rows = env.split("train")
    infos = [rows[i].info for i in range(min(ROWS, len(rows)))]
    if any(json.loads(json.dumps(info, default=str)) != info for info in infos):
        return "info holds values that no record has, such as dates or tuples"
    return None
