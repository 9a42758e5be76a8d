"""What became of a recorded reward between two windows of a regraded run, in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hone.reproduce.attribution import Split, Window

_Z = 1.96
_Z_BEST = 2.77
"""For the best of nine windows, each with its chance of being the best (Bonferroni)."""
_SMALL = 0.1
"""Share of a change that is not worth naming as a cause."""
_MOST = 0.75
"""Share of a change from which one cause is named as the cause."""

FALLS = {
    "parser": "Your parser lost it: the model did not get worse.",
    "skill": "The model got worse: both graders say so.",
    "truncation": "The completions outgrew their length limit, and lost their answers to it.",
    "format": "The points for format went, not the right answers.",
}
RISES = {
    "parser": "Answers came into a form that the recorded grader reads; as many were right before.",
    "skill": "The model got better: both graders say so.",
    "truncation": "Fewer completions lost their answer to the length limit.",
    "format": "Points for format were won, not more right answers.",
}


@dataclass(frozen=True)
class Verdict:
    """`cause` is the part of the split that caused the change, `mixed`, `undecided` if the other grader can't tell, or
    `none` without a change.
    """

    cause: str
    sentence: str
    before: Window
    after: Window

    def record(self) -> dict[str, Any]:
        """Return the verdict as JSON-ready values."""
        change = change_between(self.before, self.after)
        return {
            "cause": self.cause,
            "sentence": self.sentence,
            "change": {"recorded": change.total} | asdict(change),
            "from": self.before.record(),
            "to": self.after.record(),
        }


def choose_ends(windows: Sequence[Window]) -> tuple[Window, Window]:
    """Choose the windows between which the change is measured: the best paid and the last or, if the last is about as
    well paid as the best, the first and the last.
    """
    best, last = max(windows, key=lambda w: w.recorded), windows[-1]
    return (best, last) if best.recorded - last.recorded > noise(best, last, _Z_BEST) else (windows[0], last)


def noise(before: Window, after: Window, z: float = _Z) -> float:
    """Return how far recorded means may differ without a change: a 95 % interval, at least 0.01."""
    return max(0.01, z * float(np.hypot(before.error, after.error)))


def change_between(before: Window, after: Window) -> Split:
    """Compute the change. If the length limit stopped all of one window, skill is not seen there: the worth of those it
    did not stop in the other window counts as truncation.
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
    """Name the cause of the change between two windows.

    `run` are all windows, which show whether the other grader tells completions apart at all; `same_grader`: there is
    no other one.
    """
    if before is after:
        sentence = f"there is no change to split: all that was graded both times is of the steps {before.name}."
        return Verdict("none", sentence, before, after)
    change = change_between(before, after)
    parts, total, where = asdict(change), change.total, f"from steps {before.name} to {after.name}"
    listed = ", ".join(f"{name} {signed(parts[name])}" for name in ("parser", "skill", "truncation", "format"))
    if abs(total) <= noise(before, after):
        hidden = max(map(abs, parts.values())) > max(0.05, noise(before, after))
        more = " Its parts moved against each other." if hidden else ""
        sentence = f"the recorded reward did not change {where} ({signed(total)}, within noise): {listed}.{more}"
        return Verdict("none", sentence, before, after)
    shares = {name: value / total for name, value in parts.items()}
    cause = max(shares, key=lambda name: shares[name])
    if shares[cause] < _MOST:
        causes = [name for name in sorted(shares, key=lambda name: -shares[name]) if shares[name] > _SMALL]
        cause = "mixed"
        words = f"Several things together: {', '.join(f'{name} {shares[name]:.0%}' for name in causes)}."
    else:
        words = (FALLS if total < 0 else RISES)[cause]
    if cause == "parser":
        words = _parser_words(before, after, shares["skill"], total) or words
    if cause == "skill" and same_grader:
        cause, words = "undecided", "One grader can't tell the model from its parser: name another one with --env."
    elif cause == "parser" and (blind := _blind([before, after, *run])):
        cause, words = "undecided", blind
    sentence = f"the recorded reward {'fell' if total < 0 else 'rose'} by {abs(total):.2f} {where}: {listed}. {words}"
    return Verdict(cause, sentence, before, after)


def _parser_words(before: Window, after: Window, skill: float, total: float) -> str:
    """Say which grader erred; empty in the usual case. `skill` is skill's share of the change."""
    if total > 0:
        paid_unseen = after.split.parser > -before.split.parser
        return "The recorded grader pays for what the other one does not see: that is not skill." if paid_unseen else ""
    if before.split.parser > -after.split.parser:
        worse = "; the model got a little worse, too." if skill > _SMALL else ": the model did not get worse."
        return "The recorded grader had paid for what the other one does not see" + worse
    if before.split.parser < -max(0.05, noise(before, after)):
        return "Your parser lost it, if the other grader is right: it was more lenient from the start."
    if skill > _SMALL:
        return "Your parser lost most of it; the model got a little worse, too."
    return "Your parser lost it: the model even got better." if skill < -_SMALL else ""


def _blind(windows: Sequence[Window]) -> str:
    """Say why a grader can't tell what changed: it treats all completions alike; empty if it does not."""
    if all(one.right_both + one.right_new == 1.0 for one in windows):
        return "The other grader calls everything right: your parser loses answers, or the other one pays for any."
    if all(one.split.skill + one.split.truncation == 0.0 for one in windows):
        return "The other grader sees nothing in any completion, so it can't tell what changed: is it for this task?"
    return ""


def signed(value: float) -> str:
    """Format `+0.05`, `-0.50`, `0.00`."""
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"
