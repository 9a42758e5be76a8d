"""Checks that no wrong answer earns as much as a right one. A policy would exploit such an answer.

It compares the highest reward of a wrong answer with the lowest of a right one, among graded texts and conversations.
If the rubric declares all ranges, all combinations of component values count too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hone.environments import Rubric, calls_of
from hone.errors import UserError
from hone.extensions.audit.conversations import inversion_texts
from hone.extensions.audit.probes import Probe, Prober, messages_of
from hone.extensions.audit.report import Check, Finding, Verdict
from hone.types import Outcome

SUBJECTS = 4
"""Number of examples to try texts and conversations with."""
MOST_WORDS = 2_000
"""Texts with more words are left out: few runs have room for them."""
_SMALL = 1e-9
_ANSWERED = (Outcome.CORRECT, Outcome.WRONG)


@dataclass(frozen=True)
class Total:
    """A reward by component. `probe`: the text that earned the reward; None if it is computed from declared ranges."""

    parts: dict[str, float]
    probe: Probe | None = None

    @property
    def reward(self) -> float:
        return sum(self.parts.values())

    @property
    def source(self) -> str:
        return "declared" if self.probe is None else "found"

    @property
    def words(self) -> int:
        return _words(self.probe) if self.probe is not None else 0

    @property
    def answered(self) -> bool:
        return self.probe is None or self.probe.score.outcome in _ANSWERED

    @property
    def calls(self) -> list[int]:
        messages = messages_of(self.probe.text.completion) if self.probe is not None else ()
        return [len(calls_of(message)) for message in messages]

    @property
    def rank(self) -> tuple[float, bool, int, int]:
        """Sort key of wrong answers, the best last: higher reward, has an answer, fewer calls, fewer words."""
        return self.reward, self.answered, -sum(self.calls), -self.words

    def figures(self) -> dict[str, Any]:
        shown = f"{self.probe.name} (example {self.probe.example_id})" if self.probe is not None else None
        return {"reward": self.reward, "parts": self.parts, "source": self.source, "shown": shown}


def check_inversion(prober: Prober) -> Check:
    """Compare the best wrong answer with the worst right one, among texts graded so far and `inversion_texts`."""
    env, rubric = prober.env, prober.env.rubric
    findings: list[Finding] = []
    try:
        env.check_rollouts()
        prober.grade(inversion_texts(env, prober.distinct[: SUBJECTS if env.max_turns <= 16 else 2]))
    except UserError as error:
        remedy = "audit it on a machine where it can be sampled"
        findings.append(Finding("not-played", Verdict.NOTE, f"no conversation was played: {error}", remedy))
    graded = [probe for probe in prober.graded if not probe.failed]
    fair = [probe for probe in graded if _words(probe) <= MOST_WORDS]
    right = [probe for probe in fair if probe.correct]
    wrong = [probe for probe in fair if not probe.correct]
    worst = min(totals_of(rubric, right, True), key=lambda total: (total.reward, total.words), default=None)
    totals = list(totals_of(rubric, wrong, False))
    best = max(totals, key=lambda total: total.rank, default=None)
    findings = [*_out_of_range(rubric, graded), *findings]
    summary = f"of {len(graded)} texts none was right, or none was wrong, so there is nothing to compare"
    if worst is not None and best is not None:
        less = best.reward < worst.reward and _amount(best.reward) == _amount(worst.reward)
        summary = (
            f"a wrong answer earns {'less than' if less else 'at most'} {_amount(best.reward)} ({best.source}), "
            f"a right one at least {_amount(worst.reward)} ({worst.source}); {len(graded)} texts"
        )
        if best.reward >= worst.reward:
            # The plainest: a text rather than declared ranges, one call in a message rather than many.
            reached = [total for total in totals if total.reward >= worst.reward]
            plainest = max(reached, key=lambda t: (t.probe is not None, max(t.calls, default=0) <= 1, t.rank))
            findings.insert(0, _inversion(rubric, plainest, worst))
    figures = {
        "components": [_component(rubric, name, right, wrong) for name in rubric.funcs],
        "best_wrong": best and best.figures(),
        "worst_right": worst and worst.figures(),
        "texts": len(graded),
    }
    return Check("inversion", summary, tuple(findings), figures)


def contribution(weight: float, values: tuple[float, float]) -> tuple[float, float]:
    """Compute the range that a component adds to the reward. A negative weight swaps the bounds."""
    if weight == 0:
        return 0.0, 0.0
    low, high = sorted(weight * value for value in values)
    return low, high


def totals_of(rubric: Rubric, probes: Sequence[Probe], right_answers: bool) -> Iterable[Total]:
    """Yield each text's reward. If all ranges are declared, also yield the lowest possible reward of a right answer, or
    the highest of a wrong one.
    """
    kind, end = ("right", 0) if right_answers else ("wrong", 1)
    if rubric.ranges.keys() == rubric.funcs.keys():
        ranges = {name: getattr(given, kind) for name, given in rubric.ranges.items()}
        yield Total({name: contribution(rubric.weights[name], ends)[end] for name, ends in ranges.items()})
    for probe in probes:
        score = probe.score
        yield Total({name: score.weights[name] * value for name, value in score.components.items()}, probe)


def _words(probe: Probe) -> int:
    spoken = [message for message in messages_of(probe.text.completion) if message.get("role") == "assistant"]
    return sum(len(str(message.get("content") or "").split()) for message in spoken)


def _component(rubric: Rubric, name: str, right: Sequence[Probe], wrong: Sequence[Probe]) -> dict[str, Any]:
    line: dict[str, Any] = {"name": name, "weight": rubric.weights[name], "decides": name == rubric.correctness}
    for kind, probes in (("right", right), ("wrong", wrong)):
        values = [probe.score.components[name] for probe in probes if name in probe.score.components]
        ends, source = (min(values), max(values)) if values else None, "found"
        if name in rubric.ranges:
            ends, source = getattr(rubric.ranges[name], kind), "declared"
        line[kind] = {"low": ends[0], "high": ends[1], "source": source} if ends else None
    return line


def _out_of_range(rubric: Rubric, probes: Sequence[Probe]) -> list[Finding]:
    words, shown = {}, []
    for probe in probes:
        for name, value in probe.score.components.items():
            if name not in rubric.ranges or name in words or probe.score.outcome not in _ANSWERED:
                continue
            kind = "right" if probe.correct else "wrong"
            low, high = getattr(rubric.ranges[name], kind)
            if not low - _SMALL <= value <= high + _SMALL:
                words[name] = f"{name} is {value:g} for a {kind} answer and declares {low:g} to {high:g}"
                shown.append(probe.evidence(f"{name} from {low:g} to {high:g}"))
    title = f"a component leaves its declared range: {'; '.join(words.values())}"
    remedy = "correct the function, or the range in Rubric(ranges=...)"
    return [Finding("range", Verdict.FAIL, title, remedy, tuple(words), tuple(shown))] if words else []


def _inversion(rubric: Rubric, best: Total, worst: Total) -> Finding:
    """Return a finding with a title such as "5 calls of tools (bonus: 5.0) can beat a right answer (1.0)"."""
    culprits = _culprits(best, worst)
    names, gain = " and ".join(culprits), sum(best.parts.get(name, 0.0) for name in culprits)
    calls = sum(best.calls) if gain > 0 else 0
    who = "a wrong answer" if best.answered else "a text without an answer"
    who = f"{calls} calls of tools" if calls else who
    paid = _amount(gain) if calls or abs(best.reward - gain) <= _SMALL else f"{_amount(gain)} of {_amount(best.reward)}"
    beats = "can beat" if best.reward > worst.reward + _SMALL else "can equal"
    by = " (by the declared ranges)" if None in (best.probe, worst.probe) else ""
    title = f"{who} ({names}: {paid}) {beats} a right answer ({_amount(worst.reward)}){by}"
    remedy = "let all that a wrong answer can earn stay below what a right one earns for sure"
    room = worst.reward - (best.reward - gain)
    if gain > 0 and room > 0:
        together = " together" if len(culprits) > 1 else ""
        remedy += f": {names} must add less than {_amount(room)}{together}"
    if rubric.weights[rubric.correctness] <= 0:
        remedy = f"give {rubric.correctness}, which decides what is right, a weight above 0"
    expected = (
        f"less than a right answer, which earns {_amount(worst.reward)}",
        f"more than a wrong answer, which earns {_amount(best.reward)}",
    )
    pairs = zip((best, worst), expected, strict=True)
    shown = tuple(total.probe.evidence(words) for total, words in pairs if total.probe is not None)
    return Finding("inversion", Verdict.FAIL, title, remedy, culprits, shown)


def _culprits(best: Total, worst: Total) -> tuple[str, ...]:
    """Return the component where the wrong answer leads most or, if that pays too little, all where it leads."""
    ahead = {name: best.parts.get(name, 0.0) - worst.parts.get(name, 0.0) for name in {**best.parts, **worst.parts}}
    most = max(ahead, key=lambda name: (ahead[name], best.parts.get(name, 0.0)))
    paying = tuple(name for name, more in ahead.items() if more > _SMALL and best.parts.get(name, 0.0) > 0)
    return (most,) if len(paying) < 2 or best.parts.get(most, 0.0) >= worst.reward else paying


def _amount(reward: float) -> str:
    text = f"{reward:.6g}"
    return text if "." in text or "e" in text or not math.isfinite(reward) else f"{text}.0"
