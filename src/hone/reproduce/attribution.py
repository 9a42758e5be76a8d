"""Where a reward went: two graders' scores of the same completions, split into skill, parser, truncation and format.

Of each completion, `recorded` is the recorded reward and `seen` what the other grader makes of it, on the recorded
one's scale: main part + format part. Over the completions of a window of steps that both could grade:

    skill       mean of the seen main part over completions that the length limit did not stop
    truncation  mean of the seen main part over all completions, minus skill
    format      mean of the seen format part
    parser      mean of recorded - seen

Their sum is the mean recorded reward, exactly, so that a change between two windows is the sum of their changes. What
the graders differ by from the start (a stricter one, say) is in `parser` of both windows, and in no change.

The main part is what the correctness function is worth, weight x value; all components, if its weight is 0 (similarity
beside an exact match that only counts). It is scaled to the recorded grader's full marks. The format part are the
recorded grader's other components: as the other grader sees those that it has by the same name, as recorded the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from hone.environments import Rubric
from hone.types import Outcome, Score

WINDOWS = 10
"""Parts that the steps of a run are cut into."""
FEW_STEPS = 5


@dataclass(frozen=True)
class Marks:
    """Which components make up the main part of a reward, and what that is worth when all of them are full."""

    main: tuple[str, ...]
    full: float

    def main_part(self, score: Score) -> float:
        """What the main part is worth in a score."""
        return sum(score.weights.get(name, 0.0) * score.components.get(name, 0.0) for name in self.main)

    @classmethod
    def of(cls, rubric: Rubric) -> Marks:
        """Those of a rubric: full is the best that its declared ranges allow for a right answer, else 1 a component."""
        weights, ranges = rubric.weights, rubric.ranges
        if weights[rubric.correctness]:
            return cls((rubric.correctness,), weights[rubric.correctness])
        best = {name: ranges[name].right if name in ranges else (0.0, 1.0) for name in weights}
        return cls(tuple(weights), sum(max(weights[name] * value for value in best[name]) for name in weights))

    @classmethod
    def recorded(cls, scores: Sequence[Score]) -> Marks:
        """Those of a grader that is gone, from its scores: correct are those whose correctness function gave 1.

        None of the scores is a failure.
        """
        weights = scores[0].weights
        fits = [
            name
            for name in weights
            if all((score.components.get(name, 0.0) >= 1) == (score.outcome is Outcome.CORRECT) for score in scores)
        ]
        name = max(fits, key=lambda name: weights[name] != 0, default=None)
        if name is None or not weights[name]:
            return cls(tuple(weights), sum(max(weight, 0.0) for weight in weights.values()))
        return cls((name,), weights[name])


@dataclass(frozen=True)
class Split:
    """What a mean reward, or a change of one, is made of."""

    skill: float
    truncation: float
    format: float
    parser: float

    @property
    def total(self) -> float:
        return self.skill + self.truncation + self.format + self.parser

    def __sub__(self, other: Split) -> Split:
        return Split(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))

    def record(self) -> dict[str, float]:
        """Its parts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def seen(old: Score, new: Score, old_marks: Marks, new_marks: Marks) -> tuple[float, float]:
    """(main part, format part) of what the other grader sees in a completion, on the recorded grader's scale."""
    scale = old_marks.full / new_marks.full if old_marks.full > 0 and new_marks.full > 0 else 1.0
    extra = 0.0
    for name, weight in old.weights.items():
        if name not in old_marks.main:
            known = new.components if name in new.weights and name not in new_marks.main else old.components
            extra += weight * known.get(name, 0.0)
    return scale * new_marks.main_part(new), extra


def split(recorded: np.ndarray, main: np.ndarray, extra: np.ndarray, truncated: np.ndarray) -> Split:
    """The split of N completions: recorded rewards, main and format part as `seen`, which the length limit stopped.

    If it stopped all, skill is what they are worth, and truncation 0.
    """
    ended = main[~truncated] if not truncated.all() else main
    skill = float(ended.mean())
    return Split(
        skill=skill,
        truncation=float(main.mean()) - skill,
        format=float(extra.mean()),
        parser=float((recorded - main - extra).mean()),
    )


@dataclass(frozen=True)
class Columns:
    """What is kept of each of N completions: float64, bool and int64 arrays. Rewards are NaN where grading failed."""

    step: np.ndarray
    recorded: np.ndarray
    regraded: np.ndarray
    main: np.ndarray
    extra: np.ndarray
    was_right: np.ndarray
    is_right: np.ndarray
    truncated: np.ndarray
    length: np.ndarray

    def within(self, first: int, last: int) -> Columns:
        """Those of the steps first to last."""
        chosen = (self.step >= first) & (self.step <= last)
        return Columns(*(getattr(self, f.name)[chosen] for f in fields(self)))

    @property
    def both(self) -> np.ndarray:
        """Bool: which completions both graders could grade."""
        return np.isfinite(self.recorded) & np.isfinite(self.regraded)


@dataclass(frozen=True)
class Window:
    """The completions of the steps first to last: means over those that both graders could grade, shares of these.

    `error` is the standard error of the recorded mean, over steps. `count` are all completions.
    """

    first: int
    last: int
    count: int
    graded: int
    recorded: float
    regraded: float
    error: float
    right_both: float
    right_old: float
    right_new: float
    truncated: float
    length: float
    split: Split

    @property
    def name(self) -> str:
        return f"{self.first}-{self.last}" if self.last > self.first else str(self.first)

    def record(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "split"} | {
            "split": self.split.record()
        }


def window(columns: Columns, first: int, last: int) -> Window | None:
    """The window of these steps; None if it has no completion that both graders could grade."""
    part = columns.within(first, last)
    both = part.both
    if not both.any():
        return None
    recorded, was, now = part.recorded[both], part.was_right[both], part.is_right[both]
    return Window(
        first=int(part.step.min()),
        last=int(part.step.max()),
        count=len(both),
        graded=int(both.sum()),
        recorded=float(recorded.mean()),
        regraded=float(part.regraded[both].mean()),
        error=_standard_error(part.step[both], recorded),
        right_both=float((was & now).mean()),
        right_old=float((was & ~now).mean()),
        right_new=float((~was & now).mean()),
        truncated=float(part.truncated[both].mean()),
        length=float(part.length[both].mean()),
        split=split(recorded, part.main[both], part.extra[both], part.truncated[both]),
    )


def windows(columns: Columns) -> list[Window]:
    """The run in at most ten windows of equally many recorded steps."""
    steps = np.unique(columns.step)
    parts = np.array_split(steps, min(WINDOWS, len(steps)))
    return [w for part in parts if (w := window(columns, int(part[0]), int(part[-1]))) is not None]


def _standard_error(steps: np.ndarray, values: np.ndarray) -> float:
    """Of the mean: from the means of the steps, for completions of a step resemble each other. A few means may be
    alike by chance, so that it is then no less than from the completions.
    """
    means = np.array([values[steps == step].mean() for step in np.unique(steps)])
    samples = [means] if len(means) >= FEW_STEPS else [means, values]
    return max(float(part.std(ddof=1) / np.sqrt(len(part))) if len(part) > 1 else 0.0 for part in samples)
