"""Writes the RL loop's records into the run directory. Too many completions without a grade end the run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from hone.algorithms.gap import Band
from hone.config.rl import RLConfig
from hone.errors import Halt, UserError
from hone.grading import last_line
from hone.loops.canary import GapWatch
from hone.loops.groups import call_rewards, group_state, has_call_rewards, rewards
from hone.loops.updates import Update
from hone.model.texts import SpecialTexts
from hone.runs.rollouts import group_rows
from hone.runs.saving import Saver
from hone.runs.writer import RunWriter
from hone.terminal import printable
from hone.trainer.token_stats import TokenStats
from hone.types import Group, Outcome, Rollout, Score

WINDOW = 1000
"""The share of failures is computed over this many completions, so that 5 % rarely look like 10 %."""
LEAST = 256
"""In a shorter run the share is computed over all planned completions, but over at least this many."""


class RunRecorder:
    """Records and checks the steps of an RL run. `band` bounds the logprob gap of sampler and trainer."""

    def __init__(self, config: RLConfig, run: RunWriter, saver: Saver, band: Band, special_texts: SpecialTexts) -> None:
        orch = config.orchestrator
        self.run, self.saver, self.special_texts = run, saver, special_texts
        self.watch = GapWatch(band, config.gap.action, run)
        self.published = self.watch.published
        self.failures = FailureWatch(orch.grading.max_failed, config.max_steps * orch.batch_size, run)
        self.needs_positive = orch.advantage.divides_by_mean
        """True: warn if a reward is below 0, because advantages are divided by a mean of rewards."""
        self._all_masked_shown = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as `time/<name>`. The block may be aborted if the process must end."""
        with self.saver.stop.abandonable(), self.run.phase(name):
            yield

    def record(self, step: int, metrics: dict[str, float], groups: list[Group], update: Update) -> None:
        """Write a step with its metrics and its update.

        Rollouts are written first, so a step with metrics on disk has its samples on disk. Raises Halt if too many
        completions could not be graded (UserError if none of step 0 could), or if the logprob gap is too large.
        """
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        if groups:
            rows = [row for i, group in enumerate(groups) for row in group_rows(step, i, group, group_state(group))]
            with self.run.phase("record"):
                self.run.rollouts(step, rows)
                if update.token_stats is not None:
                    self.run.token_stats(step, _token_rows(groups, update.token_stats))
            scores = [score for group in groups for score in group.scores]
            self.run.note(reward_weights=dict(next((score.weights for score in scores if score.weights), {})))
        tokens = sum(segment.num_sampled for rollout in rollouts for segment in rollout.segments)
        rate = {"tokens/s": tokens / self.run.seconds_so_far} if tokens else {}
        self.run.log_step(step, metrics, rate | update.timings, update.weights)
        self._check_tools(step, rollouts)
        if groups and self.needs_positive:
            self._check_least(step, groups)
        self.special_texts.report(self.run.event, self.run.display.message, step)
        self._check_masked(step, groups)
        if groups:
            self.failures.step(step, [score for group in groups for score in group.scores])
        else:
            self.failures.show_total()
        self.watch.trained(step, metrics)

    def evaluated(self, step: int, samples: Sequence[Any], rows: list[dict[str, Any]]) -> None:
        with self.run.phase("record"):
            self.run.evaluation(step, rows)
        self._check_tools(step, [sample.trajectory for sample in samples])
        self.failures.evaluated(step, [sample.score for sample in samples])

    def _check_least(self, step: int, groups: Sequence[Group]) -> None:
        rows = [call_rewards(group) if has_call_rewards(group) else rewards(group.scores) for group in groups]
        found = np.concatenate(rows)
        if not (least := float(np.min(found, initial=0.0, where=~np.isnan(found)))) < 0:
            return
        self.needs_positive = False
        self.run.event("negative_reward", step, reward=least)
        self.run.display.message(
            f'Step {step} has a reward of {least:g}, but orchestrator.advantage.scale = "group_mean" divides by the '
            "mean reward of a group: near 0 it makes advantages very large, below 0 it drops the group. Make all "
            "rewards 0 or more, or take another scale."
        )

    def _check_masked(self, step: int, groups: Sequence[Group]) -> None:
        if self._all_masked_shown or not groups or not all(group.all_masked for group in groups):
            return
        self._all_masked_shown = True
        self.run.event("all_masked", step)
        self.run.display.message(
            f"All completions of step {step} were cut off at the length limit, and orchestrator.truncated = mask "
            "trains on none of them: the weights stayed as they are. Raise orchestrator.sampling.max_tokens (and "
            "seq_len)."
        )

    def _check_tools(self, step: int, rollouts: Sequence[Rollout]) -> None:
        if any(rollout.late for rollout in rollouts):
            self.run.mark_inexact(step, "a tool was ended at its deadline")
        if any(rollout.killed for rollout in rollouts):
            self.run.mark_inexact(step, "a process of the environment was killed from outside, and once more")


def _token_rows(groups: Sequence[Group], token_stats: TokenStats) -> list[dict[str, Any]]:
    stats, rows = token_stats.by_completion(), []
    for group in groups:
        for index, rollout in enumerate(group.rollouts):
            entropies, logprobs = stats.get((group.draw, index), (None, None))
            rows.append({"sample_id": rollout.sample_id, "entropies": entropies, "trainer_logprobs": logprobs})
    return rows


class FailureWatch:
    """Raises Halt if more than the share `max_failed` of the last completions could not be graded.

    It counts the last `WINDOW` completions, or `planned` (at least `LEAST`) in a shorter run, so that a few early
    failures don't end a run. A resume starts the count at 0. A step without any graded completion always ends the run.
    """

    def __init__(self, max_failed: float, planned: int, run: RunWriter) -> None:
        self._max_failed, self._run = max_failed, run
        self._window = max(LEAST, min(WINDOW, planned))
        self._steps: deque[tuple[int, int]] = deque()
        """For each of the last steps: (failed completions, all completions)."""
        self._reported: set[Outcome] = set()
        self._evaluation_reported = False
        self._failed = self._total = 0

    def step(self, step: int, scores: Sequence[Score]) -> None:
        """Count a step's scores, and show the first failure of each kind.

        Raises UserError if all scores of step 0 are failures; Halt if all of a later step are, or too many recent ones.
        """
        failures = [score for score in scores if score.outcome.is_failure]
        self._failed += len(failures)
        self._total += len(scores)
        self._steps.append((len(failures), len(scores)))
        while sum(total for _, total in self._steps) - self._steps[0][1] >= self._window:
            self._steps.popleft()
        if not failures:
            return
        self._mark_inexact(step, failures)
        kinds = Counter(score.outcome for score in failures)
        firsts = {score.outcome: score.detail for score in reversed(failures) if score.outcome not in self._reported}
        self._reported |= kinds.keys()
        for outcome, detail in firsts.items():
            self._run.event(str(outcome), step, count=kinds[outcome], total=len(scores), detail=detail)
        first = failures[0].detail
        if len(failures) == len(scores):
            text = f"every completion of step {step} failed in the grader, so there is nothing to learn from"
            if step == 0:
                raise UserError(f"{text}: fix the reward function or the agent. The first:\n{printable(first)}")
            raise Halt(f"{text} ({last_line(first)}): fix the reward function or the agent")
        for outcome, detail in firsts.items():
            self._run.display.message(
                f"{kinds[outcome]} of {len(scores)} completions could not be graded; the first: {printable(detail)}"
            )
        failed, seen = (sum(counts) for counts in zip(*self._steps, strict=True))
        if failed > self._max_failed * max(self._window, seen):
            raise Halt(
                f"{failed} of the last {seen} completions failed in the grader, and the limit is "
                f"{self._max_failed:.0%} of {max(self._window, seen)} (--orchestrator.grading.max-failed). Fix the "
                f"reward function; its last error: {last_line(first)}"
            )

    def evaluated(self, step: int, scores: Sequence[Score]) -> None:
        """Show the first failure of an evaluation. Failures of evaluations enter no average and end no run."""
        failures = [score for score in scores if score.outcome.is_failure]
        self._mark_inexact(step, failures)
        if failures and not self._evaluation_reported:
            self._evaluation_reported = True
            self._run.display.message(
                f"{len(failures)} of {len(scores)} completions of the evaluation at step {step} could not be graded "
                f"and are in no average; the first: {printable(failures[0].detail)}"
            )

    def show_total(self) -> None:
        if self._failed:
            self._run.display.message(
                f"{self._failed:,} of {self._total:,} completions could not be graded, and nothing was learned from "
                "them (outcome grader_error or grader_timeout in rollouts/)."
            )

    def _mark_inexact(self, step: int, failures: Sequence[Score]) -> None:
        if any(score.outcome is Outcome.GRADER_TIMEOUT for score in failures):
            self._run.mark_inexact(step, "a grader was ended at its deadline")
        if any(score.killed for score in failures):
            self._run.mark_inexact(step, "a process that graded was killed from outside, and once more")
