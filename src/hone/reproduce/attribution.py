"""Where a reward went: two graders' scores of the same completions, split into skill, parser, truncation and format.

For each completion, `recorded` is the recorded reward; `main` and `extra` are the other grader's, on the recorded
grader's scale. Over the completions of a window of steps that both could grade:

    skill       mean of `main` over the completions that the length limit did not stop
    truncation  mean of `main` over all completions, minus skill
    format      mean of `extra`
    parser      mean of recorded - main - extra

Their sum is exactly the mean recorded reward, so that a change between two windows is the sum of their changes. If the
graders differ from the start (one is stricter, say), that is in `parser` of both windows, and in no change.

The main part is what the correctness function is worth, weight x value; all components, if its weight is 0 (similarity
beside an exact match that only counts). It is scaled to the recorded grader's full marks. The format part are the
recorded grader's other components: as the other grader sees those that it has by the same name, as recorded the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from hone.environments import Rubric
from hone.types import Outcome, Score

WINDOWS = 10
"""Parts that the steps of a run are cut into."""
FEW_STEPS = 5
POINT = np.dtype(
    [
        *((name, np.float64) for name in ("recorded", "regraded", "main", "extra")),
        *((name, np.int64) for name in ("step", "length")),
        *((name, np.bool_) for name in ("was_right", "is_right", "truncated")),
    ]
)
"""Columns kept of each completion. Rewards are NaN where grading failed."""


@dataclass(frozen=True)
class MainPart:
    """The components that make up the main part of a reward, and what that is worth when all of them are full."""

    components: tuple[str, ...]
    full: float

    def worth(self, score: Score) -> float:
        """Return what the main part is worth in a score."""
        return sum(score.weights.get(name, 0.0) * score.components.get(name, 0.0) for name in self.components)

    @classmethod
    def from_rubric(cls, rubric: Rubric) -> MainPart:
        """Take as full marks the best that declared ranges allow for a right answer; 1 for a component without."""
        weights, ranges = rubric.weights, rubric.ranges
        if weights[rubric.correctness]:
            return cls((rubric.correctness,), weights[rubric.correctness])
        best = {name: ranges[name].right if name in ranges else (0.0, 1.0) for name in weights}
        return cls(tuple(weights), sum(max(weights[name] * value for value in best[name]) for name in weights))

    @classmethod
    def from_scores(cls, scores: Sequence[Score]) -> MainPart:
        """Infer the main part when the grader is gone: its correctness function gave 1 to correct answers alone.

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


def parts_seen(old: Score, new: Score, old_main: MainPart, new_main: MainPart) -> tuple[float, float]:
    """Compute (`main`, `extra`) of one completion: what the new grader sees, on the old one's scale."""
    scale = old_main.full / new_main.full if old_main.full > 0 and new_main.full > 0 else 1.0
    extra = 0.0
    for name, weight in old.weights.items():
        if name not in old_main.components:
            known = new.components if name in new.weights and name not in new_main.components else old.components
            extra += weight * known.get(name, 0.0)
    return scale * new_main.worth(new), extra


@dataclass(frozen=True)
class Split:
    """The parts of a mean reward, or of a change of one."""

    skill: float
    truncation: float
    format: float
    parser: float

    @property
    def total(self) -> float:
        return self.skill + self.truncation + self.format + self.parser

    def __sub__(self, other: Split) -> Split:
        return Split(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


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
        """Return its fields as JSON-ready values."""
        return asdict(self)


def window(points: np.ndarray, first: int, last: int) -> Window | None:
    """Summarise the points `[N]` (POINT) of these steps; None if both graders could grade none of them."""
    inside = points[(points["step"] >= first) & (points["step"] <= last)]
    both = inside[np.isfinite(inside["recorded"]) & np.isfinite(inside["regraded"])]
    if not len(both):
        return None
    was, now, stopped = both["was_right"], both["is_right"], both["truncated"]
    ended = both["main"] if stopped.all() else both["main"][~stopped]  # if all were stopped, truncation is 0
    skill = float(ended.mean())
    return Window(
        first=int(inside["step"].min()),
        last=int(inside["step"].max()),
        count=len(inside),
        graded=len(both),
        recorded=float(both["recorded"].mean()),
        regraded=float(both["regraded"].mean()),
        error=_standard_error(both["step"], both["recorded"]),
        right_both=float((was & now).mean()),
        right_old=float((was & ~now).mean()),
        right_new=float((~was & now).mean()),
        truncated=float(stopped.mean()),
        length=float(both["length"].mean()),
        split=Split(
            skill=skill,
            truncation=float(both["main"].mean()) - skill,
            format=float(both["extra"].mean()),
            parser=float((both["recorded"] - both["main"] - both["extra"]).mean()),
        ),
    )


def windows(points: np.ndarray) -> list[Window]:
    """Cut the run into at most ten windows of equally many recorded steps."""
    steps = np.unique(points["step"])
    parts = np.array_split(steps, min(WINDOWS, len(steps)))
    return [w for part in parts if (w := window(points, int(part[0]), int(part[-1]))) is not None]


def _standard_error(steps: np.ndarray, values: np.ndarray) -> float:
    """Compute the standard error of the mean from the means of the steps, as completions of a step resemble each
    other. A few means may be alike by chance; then it is at least that from the completions.
    """
    means = np.array([values[steps == step].mean() for step in np.unique(steps)])
    samples = [means] if len(means) >= FEW_STEPS else [means, values]
    return max(float(part.std(ddof=1) / np.sqrt(len(part))) if len(part) > 1 else 0.0 for part in samples)
