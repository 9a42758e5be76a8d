"""What the RL loop tells the run directory: metrics, timings and rollouts of each step, versions to save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hone.orchestrator.failures import FailureWatch
from hone.orchestrator.groups import group_state
from hone.orchestrator.watch import Verdicts
from hone.runs.rollouts import group_rows
from hone.runs.saving import Saver
from hone.runs.writer import RunWriter
from hone.trainer.token_stats import TokenStats
from hone.types import Group, Score, Trajectory


class RunRecorder:
    """Records a run of RL."""

    def __init__(self, run: RunWriter, saver: Saver, watch: Verdicts, failures: FailureWatch) -> None:
        self.run = run
        self.saver = saver
        self.watch = watch
        self.failures = failures

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times what runs inside as `time/<name>`. It may be given up halfway when the process has to end."""
        with self.saver.stop.abandonable(), self.run.phase(name):
            yield

    def record(
        self,
        step: int,
        metrics: dict[str, float],
        groups: list[Group],
        weights: str,
        timings: Mapping[str, float] | None = None,
        token_stats: TokenStats | None = None,
    ) -> None:
        """Writes a step; `weights` is the fingerprint of the version that it trained, `token_stats` what it computed of
        the tokens.

        Its rollouts come first: a step whose metrics are on disk has its samples on disk. Halt if too many completions
        could not be graded (UserError if all of the first step), and if sampler and trainer were too far apart.
        """
        if groups:
            rows = [row for i, group in enumerate(groups) for row in group_rows(step, i, group, group_state(group))]
            with self.run.phase("record"):
                self.run.rollouts(step, rows)
                if token_stats is not None:
                    self.run.token_stats(step, token_rows(groups, token_stats))
            self.run.note_weights(groups[0].scores[0].weights)
        tokens = sum(t.num_sampled for group in groups for t in group.trajectories)
        rate = {"tokens/s": tokens / self.run.seconds_so_far} if tokens else {}
        self.run.log_step(step, metrics, rate | dict(timings or {}), weights)
        self._look_at_tools(step, [trajectory for group in groups for trajectory in group.trajectories])
        if groups:
            self.failures.step(step, [score for group in groups for score in group.scores])
        else:
            self.failures.tell_total()
        self.watch.trained(step, metrics)

    def returned(self, step: int, draws: list[int], oldest: int) -> None:
        """Notes draws that are sampled again, for a token of theirs is older than version `oldest`."""
        self.run.event("stale", step, draws=draws, oldest=oldest)

    def evaluated(
        self,
        step: int,
        trajectories: Sequence[Trajectory],
        scores: Sequence[Score],
        rows: list[dict[str, Any]],
    ) -> None:
        """Writes the samples of an evaluation of that version, as `rows`, and says what went wrong in it."""
        with self.run.phase("record"):
            self.run.evaluation(step, rows)
        self._look_at_tools(step, trajectories)
        self.failures.evaluated(step, scores)

    def _look_at_tools(self, step: int, trajectories: Sequence[Trajectory]) -> None:
        if any(trajectory.late for trajectory in trajectories):
            self.run.mark_inexact(step, "a tool was ended at its deadline")
        if any(trajectory.killed for trajectory in trajectories):
            self.run.mark_inexact(step, "a process of the environment was killed from outside, and once more")


def token_rows(groups: Sequence[Group], token_stats: TokenStats) -> list[dict[str, Any]]:
    """The rows of `hone.runs.tokens`, in the order of `group_rows`."""
    found = token_stats.by_completion()
    rows = []
    for group in groups:
        for index, trajectory in enumerate(group.trajectories):
            entropies, logprobs = found.get((group.draw, index), (None, None))
            assert entropies is None or len(entropies) == trajectory.num_sampled
            rows.append(
                {"sample_id": trajectory.sample_id, "entropies": entropies, "trainer_logprobs": logprobs},
            )
    return rows
