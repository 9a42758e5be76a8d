"""What became of a recorded reward between two windows of a regraded run, in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hone.reproduce.attribution import Split, Window

_Z = 1.96
_Z_BEST = 2.77
"""For the best of nine windows, each with its chance of being the best (Bonferroni)."""
_SMALL = 0.1
"""Share of a change that is not worth naming as a cause."""
_MOST = 0.75
"""Share of a change from which one cause is said to be it."""


@dataclass(frozen=True)
class Verdict:
    """`cause` is the part of the split that the change is due to, `mixed`, `undecided` where the other grader can't
    tell, or, without a change, `none`.
    """

    cause: str
    sentence: str
    before: Window
    after: Window

    @property
    def change(self) -> Split:
        return changed(self.before, self.after)

    @property
    def shares(self) -> dict[str, float]:
        """How much of the change each part is; empty if the parts add up to nothing."""
        total = self.change.total
        return {name: value / total for name, value in self.change.record().items()} if total else {}

    def record(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "sentence": self.sentence,
            "change": {"recorded": self.change.total} | self.change.record(),
            "from": self.before.record(),
            "to": self.after.record(),
        }


def ends(found: Sequence[Window]) -> tuple[Window, Window]:
    """The windows between which the change is measured: from the best paid one to the last; of a run that ends about
    as well paid as it ever was, from the first to the last.
    """
    best, last = max(found, key=lambda w: w.recorded), found[-1]
    return (best, last) if best.recorded - last.recorded > noise(best, last, _Z_BEST) else (found[0], last)


def noise(before: Window, after: Window, z: float = _Z) -> float:
    """Differences of recorded means up to this are no change: a 95 % interval, at least 0.01."""
    return max(0.01, z * float(np.hypot(before.error, after.error)))


def changed(before: Window, after: Window) -> Split:
    """The change between two windows. Where the length limit stopped all of one of them, skill is not seen there: what
    it can have cost, the worth of those that it did not stop in the other one, is truncation.
    """
    change = after.split - before.split
    worth, stopped = change.skill + change.truncation, (before.truncated, after.truncated)
    if 1.0 not in stopped or stopped[0] == stopped[1] or (worth < 0) != (stopped[1] == 1.0):
        return change
    other = before if stopped[1] == 1.0 else after
    cost = min(abs(worth), max(0.0, (1 - other.truncated) * other.split.skill))
    truncation = math.copysign(cost, worth)
    return replace(change, skill=worth - truncation, truncation=truncation)


def judge(before: Window, after: Window, run: Sequence[Window] = (), same_grader: bool = False) -> Verdict:
    """The change between two windows, what it is made of, and what that means.

    `run` are all windows, which show whether the other grader tells completions apart at all; `same_grader`: there is
    no other one.
    """
    if before is after:
        sentence = f"there is no change to split: all that was graded both times is of the steps {before.name}."
        return Verdict("none", sentence, before, after)
    change = changed(before, after)
    total, where = change.total, f"from steps {before.name} to {after.name}"
    listed = ", ".join(
        f"{name} {signed(getattr(change, name))}" for name in ("parser", "skill", "truncation", "format")
    )
    if abs(total) <= noise(before, after):
        hidden = max(map(abs, change.record().values())) > max(0.05, noise(before, after))
        more = " Its parts moved against each other." if hidden else ""
        sentence = f"the recorded reward did not change {where} ({signed(total)}, within noise): {listed}.{more}"
        return Verdict("none", sentence, before, after)
    cause, words = _fall(change, before, after) if total < 0 else _rise(change, before, after)
    if cause == "skill" and same_grader:
        cause, words = "undecided", "One grader can't tell the model from its parser: name another one with --env."
    elif cause == "parser" and (blind := _blind([before, after, *run])):
        cause, words = "undecided", blind
    sentence = f"the recorded reward {'fell' if total < 0 else 'rose'} by {abs(total):.2f} {where}: {listed}. {words}"
    return Verdict(cause, sentence, before, after)


def _fall(change: Split, before: Window, after: Window) -> tuple[str, str]:
    cause, shares = _cause(change)
    if cause == "parser" and before.split.parser > -after.split.parser:
        worse = "; the model got a little worse, too." if shares["skill"] > _SMALL else ": the model did not get worse."
        return cause, "The recorded grader had paid for what the other one does not see" + worse
    if cause == "parser" and before.split.parser < -max(0.05, noise(before, after)):
        return cause, "Your parser lost it, if the other grader is right: it was more lenient from the start."
    if cause == "parser" and shares["skill"] > _SMALL:
        return cause, "Your parser lost most of it; the model got a little worse, too."
    if cause == "parser" and shares["skill"] < -_SMALL:
        return cause, "Your parser lost it: the model even got better."
    return cause, {
        "parser": "Your parser lost it: the model did not get worse.",
        "skill": "The model got worse: both graders say so.",
        "truncation": "The completions outgrew their length limit, and lost their answers to it.",
        "format": "The points for format went, not the right answers.",
        "mixed": _mixed(shares),
    }[cause]


def _rise(change: Split, before: Window, after: Window) -> tuple[str, str]:
    cause, shares = _cause(change)
    if cause == "parser" and after.split.parser > -before.split.parser:
        return cause, "The recorded grader pays for what the other one does not see: that is not skill."
    return cause, {
        "parser": "Answers came into a form that the recorded grader reads; as many were right before.",
        "skill": "The model got better: both graders say so.",
        "truncation": "Fewer completions lost their answer to the length limit.",
        "format": "Points for format were won, not more right answers.",
        "mixed": _mixed(shares),
    }[cause]


def _blind(found: Sequence[Window]) -> str:
    """Why a grader can't tell what changed, for it makes the same of every completion; empty if it does not."""
    if all(one.right_both + one.right_new == 1.0 for one in found):
        return "The other grader calls everything right: your parser loses answers, or the other one pays for any."
    if all(one.split.skill + one.split.truncation == 0.0 for one in found):
        return "The other grader sees nothing in any completion, so it can't tell what changed: is it for this task?"
    return ""


def _cause(change: Split) -> tuple[str, dict[str, float]]:
    """The part that most of a change is due to, or `mixed`; and the share of each."""
    shares = {name: value / change.total for name, value in change.record().items()}
    cause = max(shares, key=lambda name: shares[name])
    return cause if shares[cause] >= _MOST else "mixed", shares


def _mixed(shares: dict[str, float]) -> str:
    causes = [name for name in sorted(shares, key=lambda name: -shares[name]) if shares[name] > _SMALL]
    return f"Several things together: {', '.join(f'{name} {shares[name]:.0%}' for name in causes)}."


def signed(value: float) -> str:
    """`+0.05`, `-0.50`, `0.00`."""
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"
