"""Grade a run's recorded completions again, without its model or torch.

The state of a conversation of several turns is not recorded, so reward functions get the initial state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from hone.environments import Environment
from hone.environments.template import Template
from hone.errors import UserError
from hone.extensions.reproduce.attribution import POINT, MainPart, parts_seen
from hone.extensions.reproduce.records import example_of, messages_of, score_of
from hone.grading import last_line
from hone.pages import visible
from hone.runs import Run
from hone.types import Example, Outcome, Rollout, Score

if TYPE_CHECKING:
    import pyarrow

COLUMNS = (
    *("sample_id", "example_id", "sampled_mask", "reward", "components", "weights", "outcome", "detail"),
    *("stop_reason", "prompt", "text", "answer", "info", "completion", "env", "draw"),
)
SHOWN = 3
"""Number of disagreements of the graders to store for each step."""
CHECKED = 256
"""Number of completions that the run's task grades again, to compare its scores with the record."""
LONGEST = 200
"""Maximum characters to store of a grading failure."""


@dataclass(frozen=True)
class Recorded:
    """A recorded completion, of the group `draw`. `length` counts the tokens that the policy sampled."""

    step: int
    example: Example
    reply: Rollout
    text: str
    length: int
    score: Score
    draw: int = 0


@dataclass(frozen=True)
class Pair:
    """A recorded completion and the score that another grader gives it."""

    recorded: Recorded
    score: Score

    @property
    def same(self) -> bool:
        """True if reward and outcome are equal to the bit, or if both gradings failed."""
        old, new = self.recorded.score, self.score
        if old.outcome.is_failure or new.outcome.is_failure:
            return old.outcome.is_failure and new.outcome.is_failure
        return old.reward == new.reward and old.outcome is new.outcome

    @property
    def disagree(self) -> bool:
        old, new = self.recorded.score.outcome, self.score.outcome
        return not (old.is_failure or new.is_failure) and (old is Outcome.CORRECT) != (new is Outcome.CORRECT)


@dataclass(frozen=True)
class Grader:
    """A task that grades. `template` makes the task's `answer` and `info` from the recorded ones."""

    env: Environment
    template: Template | None = None

    @property
    def reads_state(self) -> bool:
        """True if reward functions read a conversation's state: no record has that state."""
        return self.env.keeps_state and self.env.rubric.needs("state")

    def grade(self, recorded: Sequence[Recorded], seed: int) -> list[Pair]:
        """Grade the completions, in order. `seed` is the run's seed."""
        asked = []
        for one in recorded:
            example, reply = one.example, one.reply
            if self.template is not None:
                row = {"prompt": example.prompt, "answer": example.answer, "info": example.info}
                row |= self.template.row(row, f"sample {reply.sample_id}")
                example = Example(example.prompt, str(row["answer"]), row["info"])
            if self.reads_state:
                reply = replace(reply, state=self.env.initial_state(example, seed=0))
            asked.append((example, reply))
        scores = self.env.grade_many(asked, seed, [one.draw for one in recorded])
        return [Pair(*pair) for pair in zip(recorded, scores, strict=True)]


@dataclass
class Regraded:
    """A run's completions under another grader.

    `points` `[N]` (POINT) has all N completions. The run's task graded `checked` of them again, and `same` of these got
    the recorded score; `first_other` is the first that did not. `failed_old` and `failed_new` count gradings that
    failed then and now, and `failure` is the first reason now. `disagreeing` counts completions on which the graders
    disagree; `disagreements` has up to `SHOWN` of each step, of typical length. `scores` are the new scores of each
    step as Arrow tables, if asked for.
    """

    points: np.ndarray
    checked: int = 0
    same: int = 0
    first_other: Pair | None = None
    failed_old: int = 0
    failed_new: int = 0
    failure: str = ""
    disagreeing: int = 0
    disagreements: list[Pair] = field(default_factory=list)
    scores: list[pyarrow.Table] = field(default_factory=list)

    def add(self, pairs: Sequence[Pair], old_main: MainPart, new_main: MainPart) -> None:
        rows = []
        for pair in pairs:
            one, new = pair.recorded, pair.score
            main, extra = parts_seen(one.score, new, old_main, new_main)
            right = (one.score.outcome is Outcome.CORRECT, new.outcome is Outcome.CORRECT)
            rows.append((one.score.reward, new.reward, main, extra, one.step, one.length, *right, one.reply.truncated))
        self.points = np.concatenate([self.points, np.array(rows, POINT)])
        failed = [pair.score for pair in pairs if pair.score.outcome.is_failure]
        self.failed_old += sum(pair.recorded.score.outcome.is_failure for pair in pairs)
        self.failed_new += len(failed)
        if failed and not self.failure:
            self.failure = visible(last_line(failed[0].detail), LONGEST)
        disagreeing = [pair for pair in pairs if pair.disagree]
        self.disagreeing += len(disagreeing)
        self.disagreements += sort_by_typical_length(disagreeing)[:SHOWN]

    def check(self, pairs: Sequence[Pair]) -> None:
        self.checked += len(pairs)
        self.same += sum(pair.same for pair in pairs)
        self.first_other = self.first_other or next((pair for pair in pairs if not pair.same), None)


def regrade(
    run: Run,
    steps: Sequence[int],
    grader: Grader,
    original: Grader | None,
    *,
    seed: int,
    task: str = "",
    max_failed: float = 1.0,
    keep_scores: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Regraded:
    """Grade the completions of these steps with `grader`, and about CHECKED of them with `original`, the run's task.

    If there are several tasks, only `task` is graded. If `grader` is `original`, all completions are checked. The
    rubric of `original`, or else of `grader`, defines the main part of the recorded reward if it has the recorded
    weights; otherwise the main part is all components. Raises UserError if, of 256 or more completions so far, a larger
    share than `max_failed` could not be graded.
    """
    result, new_main, old_main = Regraded(np.empty(0, POINT)), MainPart.from_rubric(grader.env.rubric), None
    takes_ids = any(one.env.rubric.takes_ids for one in (grader, original) if one is not None)
    for done, step in enumerate(steps):
        recorded = read_step(run, step, task, takes_ids)
        pairs = grader.grade(recorded, seed)
        if original is not None:
            quota = min((done + 1) * CHECKED // len(steps) - done * CHECKED // len(steps), len(recorded))
            spread = spread_out(recorded, quota, bool(original.env.rubric.group_funcs))
            result.check(pairs if original is grader else original.grade(spread, seed))
        graded = [one.score for one in recorded if not one.score.outcome.is_failure]
        if old_main is None and graded:
            weights = graded[0].weights
            rubrics = [one.env.rubric for one in (original, grader) if one and one.env.rubric.weights == weights]
            everything = MainPart(tuple(weights), sum(max(weight, 0.0) for weight in weights.values()))
            old_main = MainPart.from_rubric(rubrics[0]) if rubrics else everything
        result.add(pairs, old_main or MainPart((), 0.0), new_main)
        if keep_scores:
            result.scores.append(scores_table(pairs))
        progress(done + 1)
        count = len(result.points)
        if count >= 256 and result.failed_new > max_failed * count:
            raise UserError(
                f"{result.failed_new:,} of the first {count:,} completions could not be graded ({result.failure}): "
                "fix the task, or allow more with --grading.max-failed"
            )
    return result


def spread_out(
    recorded: Sequence[Recorded], count: int, whole_groups: bool, generator: np.random.Generator | None = None
) -> list[Recorded]:
    """Return about `count` completions (or whole groups of them), evenly spread or drawn by `generator`."""
    groups: dict[int, list[Recorded]] = {}
    for index, one in enumerate(recorded):
        groups.setdefault(one.draw if whole_groups else index, []).append(one)
    parts = list(groups.values())
    if generator is not None:
        parts = [parts[i] for i in generator.permutation(len(parts))]
    number = math.ceil(count * len(parts) / max(1, len(recorded)))
    return [one for i in range(number) for one in parts[i * len(parts) // number]]


def read_step(run: Run, step: int, task: str = "", ids: bool = False) -> list[Recorded]:
    """Read a step's recorded completions, only of `task` if given. With `ids`, they have their sampled tokens."""
    recorded = []
    for row in run.rollouts(step, (*COLUMNS, *(["token_ids"] if ids else []))).to_pylist():
        if task and row["env"] != task:
            continue
        tokens = [one for one, mine in zip(row["token_ids"], row["sampled_mask"], strict=True) if mine] if ids else None
        reply = Rollout(row["sample_id"], messages_of(row), row["stop_reason"], completion_ids=tokens)
        length, score = sum(row["sampled_mask"]), score_of(row)
        recorded.append(Recorded(step, example_of(row), reply, row["text"], length, score, row["draw"]))
    return recorded


def sort_by_typical_length(pairs: Sequence[Pair]) -> list[Pair]:
    median = float(np.median([len(pair.recorded.text) for pair in pairs])) if pairs else 0.0
    return sorted(pairs, key=lambda pair: abs(len(pair.recorded.text) - median))


def scores_table(pairs: Sequence[Pair]) -> pyarrow.Table:
    """Make a table of new scores, a row for each completion; `step` and `sample_id` join it with the rollouts."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    texts = ("sample_id", "example_id", "recorded_outcome", "outcome", "detail")
    types = {"step": pa.int32()} | dict.fromkeys(texts, text)
    types |= {"recorded_reward": number, "reward": number}
    types |= dict.fromkeys(("components", "weights"), pa.map_(text, number))
    rows = []
    for pair in pairs:
        one, old, new = pair.recorded, pair.recorded.score, pair.score
        row = {"step": one.step, "sample_id": one.reply.sample_id, "example_id": one.example.id}
        row |= {"recorded_outcome": str(old.outcome), "outcome": str(new.outcome), "detail": new.detail}
        row |= {"recorded_reward": None if old.outcome.is_failure else old.reward}
        row |= {"reward": None if new.outcome.is_failure else float(new.reward)}
        rows.append(row | {"components": list(new.components.items()), "weights": list(new.weights.items())})
    return pa.Table.from_pylist(rows, schema=pa.schema(types))
