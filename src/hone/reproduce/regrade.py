"""Grading again what a run recorded. Reads its rollouts, needs neither its model nor torch, and writes nothing into it.

What an environment of several turns kept of a conversation (its state) is not recorded: reward functions get the state
that a conversation begins with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hone.environments import Environment, MultiTurnEnv
from hone.environments.template import Template
from hone.errors import UserError
from hone.grading import last_line
from hone.pages import visible
from hone.reproduce.attribution import Columns, Marks, seen
from hone.runs import Run
from hone.types import Example, Outcome, Reply, Score

if TYPE_CHECKING:
    import pyarrow

COLUMNS = (
    *("sample_id", "example_id", "sampled_mask", "reward", "components", "weights", "outcome", "detail"),
    *("stop_reason", "prompt", "text", "answer", "info", "completion"),
)
"""Of a run's rollouts, what is read."""
SHOWN = 3
"""Completions about which two graders disagree that are kept of each step."""
LONGEST = 200
"""Characters of the reason why a completion could not be graded."""
_NONE = Marks((), 0.0)


@dataclass(frozen=True)
class Recorded:
    """A completion as a run recorded it. `length` counts the tokens that the policy chose."""

    step: int
    example: Example
    reply: Reply
    text: str
    length: int
    score: Score


@dataclass(frozen=True)
class Pair:
    """A recorded completion and what another grader says of it."""

    recorded: Recorded
    score: Score

    @property
    def same(self) -> bool:
        """Whether reward and outcome are the recorded ones, to the bit; failures need not fail of the same."""
        old, new = self.recorded.score, self.score
        if old.outcome.is_failure or new.outcome.is_failure:
            return old.outcome.is_failure and new.outcome.is_failure
        return old.reward == new.reward and old.outcome is new.outcome

    @property
    def disagree(self) -> bool:
        """Whether one grader says that the completion is right and the other that it is not."""
        old, new = self.recorded.score.outcome, self.score.outcome
        return not (old.is_failure or new.is_failure) and (old is Outcome.CORRECT) != (new is Outcome.CORRECT)


@dataclass(frozen=True)
class Grader:
    """A task, for what it grades with. `template` makes its `answer` and `info` of those that were recorded."""

    env: Environment
    template: Template | None = None

    @property
    def reads_state(self) -> bool:
        """Whether reward functions may miss what the environment kept of a conversation."""
        return isinstance(self.env, MultiTurnEnv) and self.env.rubric.needs("state")

    def grade(self, recorded: Sequence[Recorded], seed: int) -> list[Pair]:
        """What this task makes of the completions, in order; `seed` is the run's."""
        asked = [self._asked(one) for one in recorded]
        scores = self.env.grade_many(asked, seed)
        return [Pair(*pair) for pair in zip(recorded, scores, strict=True)]

    def _asked(self, recorded: Recorded) -> tuple[Example, Reply]:
        example, reply = recorded.example, recorded.reply
        if self.template is not None:
            row = {"prompt": example.prompt, "answer": example.answer, "info": example.info}
            made = self.template.row(row, f"sample {reply.sample_id}")
            example = Example(example.prompt, str(made.get("answer", example.answer)), made.get("info", example.info))
        if isinstance(self.env, MultiTurnEnv):
            state = self.env.initial_state(example, seed=0)
            reply = Reply(reply.messages, reply.stop_reason, reply.sample_id, state=state)
        return example, reply


@dataclass
class Check:
    """How many completions the run's own task graded again, how many came out as recorded, the first that did not."""

    count: int = 0
    same: int = 0
    first: Pair | None = None

    def add(self, pairs: Sequence[Pair]) -> None:
        self.count += len(pairs)
        self.same += sum(pair.same for pair in pairs)
        self.first = self.first or next((pair for pair in pairs if not pair.same), None)


@dataclass
class Regraded:
    """A run's completions under another grader.

    `failed_old` and `failed_new` count those that could not be graded, then and now; `failure` says why the first could
    not now. Of `disagreeing` completions, `disagreements` are up to three of each step, of usual length. `scores` are
    the new scores of each step as Arrow tables, if asked for.
    """

    columns: Columns
    check: Check
    failed_old: int = 0
    failed_new: int = 0
    failure: str = ""
    disagreeing: int = 0
    disagreements: list[Pair] = field(default_factory=list)
    scores: list[pyarrow.Table] = field(default_factory=list)


def regrade(
    run: Run,
    steps: Sequence[int],
    grader: Grader,
    own: Grader | None,
    *,
    seed: int,
    check: int,
    max_failed: float = 1.0,
    keep_scores: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Regraded:
    """Grades the completions of these steps with `grader`, and about `check` of them with `own`, the run's own task.

    If `grader` is `own`, all are checked. `progress` is told how many steps are done. UserError if there is nothing to
    grade, and as soon as more than the share `max_failed` of at least 256 could not be graded.
    """
    marks, old_marks = Marks.of(grader.env.rubric), None
    found = Regraded(_columns([], _NONE, marks), Check())
    parts: list[Columns] = []
    for done, step in enumerate(steps):
        recorded = list(read_step(run, step))
        pairs = grader.grade(recorded, seed)
        if own is not None:
            quota = (done + 1) * check // len(steps) - done * check // len(steps)
            found.check.add(pairs if own is grader else own.grade(spread(recorded, quota), seed))
        old_marks = old_marks or _recorded_marks(recorded, own)
        parts.append(_columns(pairs, old_marks or _NONE, marks))
        _note(found, pairs)
        if keep_scores:
            found.scores.append(scores_table(pairs))
        progress(done + 1)
        graded = sum(len(part.step) for part in parts)
        if graded >= 256 and found.failed_new > max_failed * graded:
            raise UserError(
                f"{found.failed_new:,} of the first {graded:,} completions could not be graded ({found.failure}): mend "
                "the task, or allow more with --grading.max-failed"
            )
    found.columns = _joined(parts)
    return found


def read_step(run: Run, step: int) -> Iterator[Recorded]:
    """The completions that a run recorded of a step."""
    table = run.rollouts(step, COLUMNS)
    lengths = _sampled(table["sampled_mask"])
    for row, length in zip(table.drop_columns(["sampled_mask"]).to_pylist(), lengths, strict=True):
        prompt, info = json.loads(row["prompt"]), json.loads(row["info"] or "{}")
        said = [{"role": "assistant", "content": row["text"]}]
        turns = said if row["completion"] is None else json.loads(row["completion"])
        outcome = Outcome(row["outcome"])
        yield Recorded(
            step=step,
            example=Example(prompt, row["answer"] or "", info, row["example_id"]),
            reply=Reply([*prompt, *turns], row["stop_reason"], row["sample_id"]),
            text=row["text"],
            length=int(length),
            score=Score(
                math.nan if outcome.is_failure else row["reward"],
                dict(row["components"]),
                dict(row["weights"]),
                outcome,
                row["detail"] or "",
            ),
        )


def _sampled(masks: Any) -> np.ndarray:
    """How many are true in each list of an Arrow column, `[rows]`."""
    column = masks.combine_chunks()
    ends = column.offsets.to_numpy() - column.offsets[0].as_py()
    counted = np.concatenate([[0], np.cumsum(column.flatten().to_numpy(zero_copy_only=False))])
    return counted[ends[1:]] - counted[ends[:-1]]


def _recorded_marks(recorded: Sequence[Recorded], own: Grader | None) -> Marks | None:
    """The marks of the grader that recorded these: of the run's own task, unless it has changed since. None if all
    failed.
    """
    graded = [one.score for one in recorded if not one.score.outcome.is_failure]
    if not graded:
        return None
    if own is not None and own.env.rubric.weights == graded[0].weights:
        return Marks.of(own.env.rubric)
    return Marks.recorded(graded)


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """`count` of the items, evenly spread, the first among them; all if there are no more."""
    if count >= len(items):
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def _note(found: Regraded, pairs: Sequence[Pair]) -> None:
    """Counts failures, and keeps typical completions about which the graders disagree."""
    found.failed_old += sum(pair.recorded.score.outcome.is_failure for pair in pairs)
    failed = [pair.score for pair in pairs if pair.score.outcome.is_failure]
    found.failed_new += len(failed)
    if failed and not found.failure:
        found.failure = visible(last_line(failed[0].detail), LONGEST)
    found.disagreeing += sum(pair.disagree for pair in pairs)
    found.disagreements += typical([pair for pair in pairs if pair.disagree])[:SHOWN]


def typical(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs by how near their completion's length is to the median, the nearest first."""
    if not pairs:
        return []
    median = float(np.median([len(pair.recorded.text) for pair in pairs]))
    return sorted(pairs, key=lambda pair: abs(len(pair.recorded.text) - median))


def _columns(pairs: Sequence[Pair], old_marks: Marks, new_marks: Marks) -> Columns:
    parts = [seen(pair.recorded.score, pair.score, old_marks, new_marks) for pair in pairs]
    recorded = [pair.recorded for pair in pairs]
    return Columns(
        step=np.array([one.step for one in recorded], dtype=np.int64),
        recorded=np.array([one.score.reward for one in recorded], dtype=np.float64),
        regraded=np.array([pair.score.reward for pair in pairs], dtype=np.float64),
        main=np.array([main for main, _ in parts], dtype=np.float64),
        extra=np.array([extra for _, extra in parts], dtype=np.float64),
        was_right=np.array([one.score.outcome is Outcome.CORRECT for one in recorded], dtype=np.bool_),
        is_right=np.array([pair.score.outcome is Outcome.CORRECT for pair in pairs], dtype=np.bool_),
        truncated=np.array([one.reply.truncated for one in recorded], dtype=np.bool_),
        length=np.array([one.length for one in recorded], dtype=np.int64),
    )


def _joined(parts: Sequence[Columns]) -> Columns:
    names = Columns.__dataclass_fields__
    return Columns(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def scores_table(pairs: Sequence[Pair]) -> pyarrow.Table:
    """New scores, a row for each completion; joins with the run's rollouts by step and sample_id."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    names = ("sample_id", "example_id", "recorded_outcome", "outcome", "detail")
    fields = [("step", pa.int32()), *((name, text) for name in names)]
    fields += [("recorded_reward", number), ("reward", number)]
    fields += [(name, pa.map_(text, number)) for name in ("components", "weights")]
    return pa.Table.from_pylist([_row(pair) for pair in pairs], schema=pa.schema(fields))


def _row(pair: Pair) -> dict[str, Any]:
    """A row of the file of new scores."""
    old, new = pair.recorded.score, pair.score
    failed = new.outcome.is_failure
    return {
        "step": pair.recorded.step,
        "sample_id": pair.recorded.reply.sample_id,
        "example_id": pair.recorded.example.id,
        "recorded_reward": None if old.outcome.is_failure else old.reward,
        "recorded_outcome": str(old.outcome),
        "reward": None if failed else float(new.reward),
        "outcome": str(new.outcome),
        "components": list(new.components.items()),
        "weights": list(new.weights.items()),
        "detail": new.detail,
    }
