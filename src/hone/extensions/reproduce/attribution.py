"""Splits a change of reward into skill, parser, truncation and format, by two graders' scores of the same completions.

For each completion, `recorded` is the recorded reward; `main` and `extra` are parts of the other grader's reward, on
the recorded grader's scale. In a window of steps, over the completions that both graders could grade:

    skill       mean of `main` over the completions that the length limit did not stop
    truncation  mean of `main` over all completions, minus skill
    format      mean of `extra`
    parser      mean of recorded - main - extra

These four parts add up to the mean recorded reward, so the changes of the parts between two windows add up to the
change of the reward. A constant difference between the graders is in `parser` of both windows, and cancels.

`main` is the correctness function's weight x value, scaled to the recorded grader's full marks; if that weight is 0, it
is the sum of all components. `extra` is the sum of the recorded grader's other components. A component has the other
grader's value if that grader has a component of the same name, else the recorded value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from hone.environments import Rubric
from hone.types import Score

WINDOWS = 10
FEW_STEPS = 5
Z, Z_BEST = 1.96, 2.77
"""z of a 95 % interval; z for the best of nine windows (Bonferroni)."""
SMALL, MOST = 0.1, 0.75
"""A part with up to the share `SMALL` of a change is not named. A part with at least the share `MOST` is the cause."""
POINT = np.dtype(
    [
        *((name, np.float64) for name in ("recorded", "regraded", "main", "extra")),
        *((name, np.int64) for name in ("step", "length")),
        *((name, np.bool_) for name in ("was_right", "is_right", "truncated")),
    ]
)
"""Facts of each completion. Rewards are NaN if grading failed."""
WORDS = {
    "skill": ("The model got worse: both graders say so.", "The model got better: both graders say so."),
    "truncation": (
        "Completions grew beyond the length limit, and lost their answers.",
        "Fewer completions lost their answer to the length limit.",
    ),
    "format": ("Points for format were lost, not right answers.", "Points for format were won, not right answers."),
}
"""For each cause, the sentences for a fall and for a rise of the reward. `_judge_parser` has more, for `parser`."""


@dataclass(frozen=True)
class MainPart:
    """The components that make up the main part of a reward, and its full marks."""

    components: tuple[str, ...]
    full: float

    @classmethod
    def from_rubric(cls, rubric: Rubric) -> MainPart:
        """Return correctness with its weight. If the weight is 0, return all components with their highest sum, by
        declared ranges (default: 0 to 1).
        """
        weights, ranges = rubric.weights, rubric.ranges
        if weights[rubric.correctness]:
            return cls((rubric.correctness,), weights[rubric.correctness])
        best = {name: ranges[name].right if name in ranges else (0.0, 1.0) for name in weights}
        return cls(tuple(weights), sum(max(weights[name] * value for value in best[name]) for name in weights))


def parts_seen(old: Score, new: Score, old_main: MainPart, new_main: MainPart) -> tuple[float, float]:
    """Compute (`main`, `extra`) of one completion by the new grader, on the old grader's scale."""
    scale = old_main.full / new_main.full if old_main.full > 0 and new_main.full > 0 else 1.0
    main = sum(new.weights.get(name, 0.0) * new.components.get(name, 0.0) for name in new_main.components)
    extra = 0.0
    for name, weight in old.weights.items():
        if name not in old_main.components:
            known = new.components if name in new.weights and name not in new_main.components else old.components
            extra += weight * known.get(name, 0.0)
    return scale * main, extra


@dataclass(frozen=True)
class Split:
    """The parts of a mean reward, or of its change."""

    parser: float
    skill: float
    truncation: float
    format: float

    @property
    def total(self) -> float:
        return self.parser + self.skill + self.truncation + self.format

    def __sub__(self, other: Split) -> Split:
        return Split(*(getattr(self, f.name) - getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Window:
    """The completions of steps `first` to `last`: means and shares of completions that both graders graded.

    `error` is the standard error of the recorded mean, over steps. `count` is the number of all completions.
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


def window(points: np.ndarray, first: int, last: int) -> Window | None:
    """Summarise the points `[N]` (dtype POINT) of steps `first` to `last`; None if no point was graded by both."""
    inside = points[(points["step"] >= first) & (points["step"] <= last)]
    both = inside[np.isfinite(inside["recorded"]) & np.isfinite(inside["regraded"])]
    if not len(both):
        return None
    was, now, stopped = both["was_right"], both["is_right"], both["truncated"]
    ended = both["main"] if stopped.all() else both["main"][~stopped]  # if all were stopped, truncation is 0
    skill = float(ended.mean())
    # Completions of a step resemble each other; a few steps may be alike by chance.
    steps = np.array([both["recorded"][both["step"] == step].mean() for step in np.unique(both["step"])])
    samples = [steps] if len(steps) >= FEW_STEPS else [steps, both["recorded"]]
    return Window(
        first=int(inside["step"].min()),
        last=int(inside["step"].max()),
        count=len(inside),
        graded=len(both),
        recorded=float(both["recorded"].mean()),
        regraded=float(both["regraded"].mean()),
        error=max(float(s.std(ddof=1) / np.sqrt(len(s))) if len(s) > 1 else 0.0 for s in samples),
        right_both=float((was & now).mean()),
        right_old=float((was & ~now).mean()),
        right_new=float((~was & now).mean()),
        truncated=float(stopped.mean()),
        length=float(both["length"].mean()),
        split=Split(
            parser=float((both["recorded"] - both["main"] - both["extra"]).mean()),
            skill=skill,
            truncation=float(both["main"].mean()) - skill,
            format=float(both["extra"].mean()),
        ),
    )


def windows(points: np.ndarray) -> list[Window]:
    """Cut the run into at most ten windows of equally many recorded steps."""
    steps = np.unique(points["step"])
    parts = np.array_split(steps, min(WINDOWS, len(steps)))
    return [w for part in parts if (w := window(points, int(part[0]), int(part[-1]))) is not None]


@dataclass(frozen=True)
class Verdict:
    """The cause of a change: a part's name, `mixed`, `undecided` (the graders can't tell), or `none` (no change)."""

    cause: str
    sentence: str
    before: Window
    after: Window

    def record(self) -> dict[str, Any]:
        change, ends = change_between(self.before, self.after), {"from": asdict(self.before), "to": asdict(self.after)}
        change = {"recorded": change.total} | asdict(change)
        return {"cause": self.cause, "sentence": self.sentence, "change": change} | ends


def choose_ends(windows: Sequence[Window]) -> tuple[Window, Window]:
    """Return the windows to compare: the window with the best reward and the last one. If their rewards differ only by
    noise, return the first window and the last one."""
    best, last = max(windows, key=lambda w: w.recorded), windows[-1]
    return (best, last) if best.recorded - last.recorded > noise(best, last, Z_BEST) else (windows[0], last)


def noise(before: Window, after: Window, z: float = Z) -> float:
    """Return the largest difference of recorded means that counts as noise: a 95 % interval, at least 0.01."""
    return max(0.01, z * float(np.hypot(before.error, after.error)))


def change_between(before: Window, after: Window) -> Split:
    """Compute the change of each part.

    If the length limit stopped all completions of one window, the skill of that window is unknown. Then the rewards of
    the other window's ended completions count as truncation, and the rest of the change counts as skill.
    """
    change = after.split - before.split
    worth = change.skill + change.truncation
    all_stopped, other = (after, before) if worth < 0 else (before, after)
    if all_stopped.truncated < 1.0 or other.truncated == 1.0:
        return change
    cost = min(abs(worth), max(0.0, (1 - other.truncated) * other.split.skill))
    truncation = math.copysign(cost, worth)
    return replace(change, skill=worth - truncation, truncation=truncation)


def judge(before: Window, after: Window, run: Sequence[Window] = (), same_grader: bool = False) -> Verdict:
    """Name the cause of the change between two windows of a `run`. `same_grader`: the run's task graded again."""
    if before is after:
        sentence = f"there is no change to split: both graders graded completions only in steps {before.name}."
        return Verdict("none", sentence, before, after)
    change = change_between(before, after)
    parts, total, where = asdict(change), change.total, f"from steps {before.name} to {after.name}"
    listed = ", ".join(f"{name} {signed(value)}" for name, value in parts.items())
    if abs(total) <= noise(before, after):
        hidden = max(map(abs, parts.values())) > max(0.05, noise(before, after))
        more = " Its parts moved in opposite directions." if hidden else ""
        sentence = f"the recorded reward did not change {where} ({signed(total)}, within noise): {listed}.{more}"
        return Verdict("none", sentence, before, after)
    shares = {name: value / total for name, value in sorted(parts.items(), key=lambda part: -part[1] / total)}
    cause = next(iter(shares))
    if shares[cause] < MOST:
        named = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share > SMALL)
        cause, words = "mixed", f"Several things together: {named}."
    elif cause == "skill" and same_grader:
        cause, words = "undecided", "One grader can't tell skill from parser: name another grader with --env."
    elif cause == "parser":
        cause, words = _judge_parser([before, after, *run], total, shares["skill"])
    else:
        words = WORDS[cause][total > 0]
    sentence = f"the recorded reward {'fell' if total < 0 else 'rose'} by {abs(total):.2f} {where}: {listed}. {words}"
    return Verdict(cause, sentence, before, after)


def _judge_parser(windows: Sequence[Window], total: float, skill: float) -> tuple[str, str]:
    """Say which grader erred. `windows`: the two compared, then all. `skill`: the share of the change that is skill."""
    before, after = (one.split.parser for one in windows[:2])
    if all(one.right_both + one.right_new == 1.0 for one in windows):
        words = "The other grader calls everything right: your parser loses answers, or the other grader accepts any."
        return "undecided", words
    if all(one.split.skill + one.split.truncation == 0.0 for one in windows):
        words = "The other grader pays for no completion, so it can't tell what changed: is it for this task?"
        return "undecided", words
    if total > 0 and after > -before:
        return "parser", "The recorded grader pays for answers that the other grader rejects: that is not skill."
    if total > 0:
        return "parser", "Answers took a form that the recorded grader reads; as many were right before."
    if before > -after:
        return "parser", "Before, the recorded grader paid for answers that the other grader rejects."
    if before < -max(0.05, noise(windows[0], windows[1])):
        return "parser", "If the other grader, more lenient from the start, is right, your parser lost the reward."
    if skill > SMALL:
        return "parser", "Your parser lost most of it: the model got a little worse."
    return "parser", "Your parser lost it: the model did not get worse."


def signed(value: float) -> str:
    """Return text such as `+0.05`, `-0.50` or `0.00`."""
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"
