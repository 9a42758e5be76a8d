"""What the RL loop tells the run directory: metrics, timings and rollouts of each step, versions to save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hone.errors import UserError
from hone.grading import printable
from hone.orchestrator.groups import group_state
from hone.orchestrator.watch import GapWatch
from hone.runs.rollouts import group_rows
from hone.runs.saving import Saver
from hone.runs.writer import RunWriter
from hone.types import Group, Outcome


class RunRecorder:
    """Records a colocated run."""

    def __init__(self, run: RunWriter, saver: Saver, watch: GapWatch) -> None:
        self.run = run
        self.saver = saver
        self.watch = watch
        self._told_failure = False

    @property
    def stopping(self) -> bool:
        """True once the run was asked to end: by the user, by the system, or by its budget."""
        return self.saver.stopping

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times what runs inside as `time/<name>`. It may be given up halfway when the process has to end."""
        with self.saver.stop.abandonable(), self.run.phase(name):
            yield

    def record(self, step: int, metrics: dict[str, float], groups: list[Group], weights: str) -> None:
        """Writes a step; `weights` is the fingerprint of the version that it sampled from.

        Its rollouts come first: a step whose metrics are on disk has its samples on disk. The first completion that
        could not be graded is told, with an event; of later ones the metrics tell. UserError after a step without a
        single graded completion: there is nothing to learn from. Halt if sampler and trainer were too far apart.
        """
        if groups:
            rows = [row for i, group in enumerate(groups) for row in group_rows(step, i, group, group_state(group))]
            with self.run.phase("record"):
                self.run.rollouts(step, rows)
        tokens = sum(t.num_sampled for group in groups for t in group.trajectories)
        timings = {"tokens/s": tokens / self.run.seconds_so_far} if tokens else None
        self.run.log_step(step, metrics, timings, weights)
        self._tell_failures(step, groups)
        self.watch.trained(step, metrics)

    def _tell_failures(self, step: int, groups: list[Group]) -> None:
        scores = [score for group in groups for score in group.scores]
        failures = [score for score in scores if score.outcome.is_failure]
        if not failures:
            return
        if any(score.outcome is Outcome.GRADER_TIMEOUT for score in failures):
            self.run.mark_inexact(step, "a grader was ended at its deadline")
        detail = printable(failures[0].detail)
        if not self._told_failure:
            self.run.event("grader_error", step, count=len(failures), total=len(scores), detail=failures[0].detail)
        if len(failures) == len(scores):
            raise UserError(
                f"every completion of step {step} failed in the grader, so there is nothing to learn from: mend the "
                f"reward function. The first:\n{detail}"
            )
        if not self._told_failure:
            self.run.display.message(
                f"{len(failures)} of {len(scores)} completions could not be graded; the first: {detail}"
            )
        self._told_failure = True
