"""Completions whose grading failed: the first is told with its traceback, all are counted, too many end the run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hone.errors import Halt, UserError
from hone.grading import last_line, printable
from hone.runs.writer import RunWriter
from hone.types import Outcome, Score

WINDOW = 1000
"""Completions over which the share of failures is taken: so many that 5 % do not pass for 10 % by chance."""
LEAST = 256
"""The same in a run that has fewer altogether."""
_DEADLINE = "a grader was ended at its deadline"
_KILLED = "a process that graded was killed from outside, and once more"
_FAILURES = [outcome for outcome in Outcome if outcome.is_failure]


class FailureWatch:
    """Judges every step: Halt if more than the share `max_failed` of the last completions could not be graded.

    These are the last `WINDOW` or, in a run of fewer (`planned`), all: the first failures of a run are not many yet.
    A step without a single graded completion always ends the run.
    """

    def __init__(self, max_failed: float, planned: int, run: RunWriter) -> None:
        self._max_failed, self._run = max_failed, run
        self._of = max(LEAST, min(WINDOW, planned))
        self._steps: deque[tuple[int, int]] = deque()
        self._told: set[Outcome] = set()
        self._told_of_evaluation = False
        self._failed = self._all = 0

    def restore(self, metrics: Iterable[Mapping[str, Any]], completions: int) -> None:
        """Counts the steps that a run took before it was resumed: their metrics, of so many `completions` each.

        If too many of them failed, that ended the run and has been mended since: counting begins anew.
        """
        for line in metrics:
            if (names := [f"outcome/{outcome}" for outcome in _FAILURES])[0] in line:
                self._count(round(sum(line[name] for name in names) * completions), completions)
        failed, _, of = self._shares()
        if failed > self._max_failed * of:
            self._steps.clear()

    def step(self, step: int, scores: Sequence[Score]) -> None:
        """Counts a step's scores, and tells of the first failure of each kind.

        UserError if nothing could be graded in the first step, Halt if that, or too many, came later.
        """
        failures = [score for score in scores if score.outcome.is_failure]
        self._count(len(failures), len(scores))
        if not failures:
            return
        first, kinds = failures[0].detail, Counter(score.outcome for score in failures)
        self._mark_inexact(step, failures)
        firsts = {score.outcome: score.detail for score in reversed(failures) if score.outcome not in self._told}
        self._told |= kinds.keys()
        for outcome, detail in firsts.items():
            self._run.event(str(outcome), step, count=kinds[outcome], total=len(scores), detail=detail)
        if len(failures) == len(scores):
            text = f"every completion of step {step} failed in the grader, so there is nothing to learn from"
            if step == 0:
                raise UserError(f"{text}: mend the reward function. The first:\n{printable(first)}")
            raise Halt(f"{text} ({last_line(first)}): mend the reward function")
        for outcome, detail in firsts.items():
            self._run.display.message(
                f"{kinds[outcome]} of {len(scores)} completions could not be graded; the first: {printable(detail)}"
            )
        self._judge(first)

    def evaluated(self, step: int, scores: Sequence[Score]) -> None:
        """Tells of the first failure in an evaluation. They are in none of its averages, and end no run."""
        failures = [score for score in scores if score.outcome.is_failure]
        self._mark_inexact(step, failures)
        if failures and not self._told_of_evaluation:
            self._told_of_evaluation = True
            self._run.display.message(
                f"{len(failures)} of {len(scores)} completions of the evaluation at step {step} could not be graded "
                f"and are in no average; the first: {printable(failures[0].detail)}"
            )

    def tell_total(self) -> None:
        """Says at the end how many there were, if any."""
        if self._failed:
            self._run.display.message(
                f"{self._failed:,} of {self._all:,} completions could not be graded, and nothing was learned from them "
                "(outcome grader_error or grader_timeout in rollouts/)."
            )

    def _mark_inexact(self, step: int, failures: Sequence[Score]) -> None:
        """Says of failures that the completion alone does not decide that the run is inexact from `step` on."""
        if any(score.outcome is Outcome.GRADER_TIMEOUT for score in failures):
            self._run.mark_inexact(step, _DEADLINE)
        if any(score.killed for score in failures):
            self._run.mark_inexact(step, _KILLED)

    def _judge(self, first: str) -> None:
        failed, seen, of = self._shares()
        if failed > self._max_failed * of:
            raise Halt(
                f"{failed} of the last {seen} completions failed in the grader, and a run goes on with at most "
                f"{self._max_failed:.0%} of {of} (--orchestrator.grading.max-failed); mend the reward "
                f"function, which said at last: {last_line(first)}"
            )

    def _shares(self) -> tuple[int, int, int]:
        """How many of the last completions failed, how many these are, and how many the share is taken of."""
        failed, seen = (sum(step[i] for step in self._steps) for i in (0, 1))
        return failed, seen, max(self._of, seen)

    def _count(self, failed: int, total: int) -> None:
        self._failed += failed
        self._all += total
        self._steps.append((failed, total))
        while sum(total for _, total in self._steps) - self._steps[0][1] >= self._of:
            self._steps.popleft()
