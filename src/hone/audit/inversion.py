"""Checks that no wrong answer earns as much as a right one: a policy finds it, and stops looking for right answers.

It compares the most that a wrong answer earns with the least for a right one. Both follow from the ranges that the
rubric declares for its components, taken as reachable together, and from texts and conversations that were graded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hone.audit.conversations import inversion_texts
from hone.audit.probes import Probe, Prober, messages_of
from hone.audit.report import Check, Finding, Verdict
from hone.environments import MultiTurnEnv, Rubric, calls_of
from hone.errors import UserError
from hone.types import Outcome

SUBJECTS = 4
"""Examples that are tried with the texts and conversations of this check."""
MOST_WORDS = 2_000
"""Texts of more words decide no total: few runs have room for them."""
_SMALL = 1e-9


@dataclass(frozen=True)
class Total:
    """The reward of a right or a wrong answer: what each component contributes, and the text that earned it.

    `declared`: the components whose part follows from their declared range; `probe` is the text for the others, None
    if all are declared.
    """

    parts: dict[str, float]
    probe: Probe | None
    declared: frozenset[str] = field(default_factory=frozenset)

    @property
    def reward(self) -> float:
        return sum(self.parts.values())

    @property
    def source(self) -> str:
        if not self.declared:
            return "found"
        return "declared" if self.probe is None else "partly declared"

    @property
    def answered(self) -> bool:
        """True if there is an answer, right or wrong."""
        return self.probe is None or self.probe.score.outcome in (Outcome.CORRECT, Outcome.WRONG)

    @property
    def rank(self) -> tuple[float, bool, int]:
        """Orders totals of wrong answers: of those that earn the same, the one that says most in the fewest words."""
        return self.reward, self.answered, -_words(self.probe)

    def figures(self) -> dict[str, Any]:
        shown = f"{self.probe.name} (example {self.probe.example_id})" if self.probe is not None else None
        return {"reward": self.reward, "parts": self.parts, "source": self.source, "shown": shown}


def check_inversion(prober: Prober, probes: Sequence[Probe]) -> Check:
    """Compare the best wrong answer with the worst right one.

    `probes` are the texts that were graded so far; texts that test other paid features are added here.
    """
    env, rubric = prober.env, prober.env.rubric
    turns = env.max_turns if isinstance(env, MultiTurnEnv) else 1
    findings: list[Finding] = []
    try:
        env.check_rollouts()
        tried = prober.grade(inversion_texts(env, prober.distinct[: SUBJECTS if turns <= 16 else 2]))
    except UserError as error:
        tried = []
        remedy = "audit it on a machine where it can be sampled"
        findings.append(Finding("not-played", Verdict.NOTE, f"no conversation was played: {error}", remedy))
    graded = [probe for probe in (*probes, *tried) if not probe.failed]
    fair = [probe for probe in graded if _words(probe) <= MOST_WORDS]
    right = [probe for probe in fair if probe.correct]
    wrong = [probe for probe in fair if not probe.correct]
    worst = min(totals_of(rubric, right, True), key=lambda total: (total.reward, _words(total.probe)), default=None)
    totals = list(totals_of(rubric, wrong, False))
    best = max(totals, key=lambda total: total.rank, default=None)
    findings = [*_out_of_range(rubric, graded), *findings]
    if worst is not None and best is not None and best.reward >= worst.reward:
        findings.insert(0, _inversion(rubric, _plainest(totals, worst), worst))
    figures = {
        "components": [_component(rubric, name, right, wrong) for name in rubric.funcs],
        "best_wrong": best and best.figures(),
        "worst_right": worst and worst.figures(),
        "texts": len(graded),
    }
    return Check("inversion", _summary(best, worst, len(graded)), tuple(findings), figures)


def contribution(weight: float, values: tuple[float, float]) -> tuple[float, float]:
    """Compute what a component of this range adds to the reward, the least first. A negative weight swaps the ends."""
    if weight == 0:
        return 0.0, 0.0
    low, high = sorted(weight * value for value in values)
    return low, high


def totals_of(rubric: Rubric, probes: Sequence[Probe], right_answers: bool) -> Iterable[Total]:
    """Yield the least rewards of right answers, or the most of wrong ones.

    They come from the texts as they are, and from the declared ranges, each with what the components without a range
    got in one text.
    """
    end = 0 if right_answers else 1
    declared = {
        name: contribution(rubric.weights[name], given.right if right_answers else given.wrong)[end]
        for name, given in rubric.ranges.items()
    }
    if declared.keys() == rubric.funcs.keys():
        yield Total(declared, None, frozenset(declared))
    for probe in probes:
        parts = {name: probe.score.weights[name] * value for name, value in probe.score.components.items()}
        partly = declared and declared.keys() != rubric.funcs.keys()
        if partly and (right_answers or probe.score.outcome is Outcome.WRONG):
            yield Total(parts | declared, probe, frozenset(declared))
        yield Total(parts, probe)


def _words(probe: Probe | None) -> int:
    return 0 if probe is None else sum(len(text.split()) for text in probe.model_texts)


def _component(rubric: Rubric, name: str, right: Sequence[Probe], wrong: Sequence[Probe]) -> dict[str, Any]:
    """Return the line of the table about a component: its range given a right and given a wrong answer."""
    line: dict[str, Any] = {"name": name, "weight": rubric.weights[name], "decides": name == rubric.correctness}
    for kind, probes in (("right", right), ("wrong", wrong)):
        declared = rubric.ranges.get(name)
        values = sorted(probe.score.components[name] for probe in probes if name in probe.score.components)
        line[kind] = None
        if declared is not None or values:
            low, high = getattr(declared, kind) if declared is not None else (values[0], values[-1])
            source = "declared" if declared is not None else "found"
            line[kind] = {"low": low, "high": high, "source": source}
    return line


def _out_of_range(rubric: Rubric, probes: Sequence[Probe]) -> list[Finding]:
    """Find components that return what their declared range does not hold.

    Ranges say nothing about texts without a well-formed answer.
    """
    outside: dict[str, Probe] = {}
    words, shown = [], []
    for probe in probes:
        for name, value in probe.score.components.items():
            given = rubric.ranges.get(name)
            if given is None or name in outside or probe.score.outcome not in (Outcome.CORRECT, Outcome.WRONG):
                continue
            low, high = given.right if probe.correct else given.wrong
            if not low - _SMALL <= value <= high + _SMALL:
                outside[name] = probe
                kind = "right" if probe.correct else "wrong"
                words.append(f"{name} is {value:g} for a {kind} answer and declares {low:g} to {high:g}")
                shown.append(probe.evidence(f"{name} from {low:g} to {high:g}"))
    title = f"a component leaves its declared range: {'; '.join(words)}"
    remedy = "correct the function, or the range in Rubric(ranges=...)"
    return [Finding("range", Verdict.FAIL, title, remedy, tuple(outside), tuple(shown))] if outside else []


def _plainest(totals: Sequence[Total], worst: Total) -> Total:
    """Choose the total to show of those that reach the right answer's: of a text rather than of declared ranges, and
    of single calls of tools rather than of many in a message.
    """
    reached = [total for total in totals if total.reward >= worst.reward]
    found = [total for total in reached if not total.declared] or reached
    single = [total for total in found if max(_calls(total), default=0) <= 1]
    return max(single or found, key=lambda total: (*total.rank[:2], -sum(_calls(total)), total.rank[2]))


def _inversion(rubric: Rubric, best: Total, worst: Total) -> Finding:
    expected = (
        f"less than a right answer, which earns {_amount(worst.reward)}",
        f"more than a wrong answer, which earns {_amount(best.reward)}",
    )
    pairs = zip((best, worst), expected, strict=True)
    shown = tuple(total.probe.evidence(words) for total, words in pairs if total.probe is not None)
    culprits = _culprits(best, worst)
    gain = sum(best.parts.get(name, 0.0) for name in culprits)
    room = worst.reward - (best.reward - gain)
    remedy = "let all that a wrong answer can earn stay below what a right one earns for sure"
    if gain > 0 and room > 0:
        together = " together" if len(culprits) > 1 else ""
        remedy += f": {' and '.join(culprits)} must add less than {_amount(room)}{together}"
    if rubric.weights[rubric.correctness] <= 0:
        remedy = f"give {rubric.correctness}, which decides what is right, a weight above 0"
    return Finding("inversion", Verdict.FAIL, _title(best, worst, culprits, gain), remedy, culprits, shown)


def _culprits(best: Total, worst: Total) -> tuple[str, ...]:
    """Return the component that puts a wrong answer furthest ahead of a right one; more of them if it needs them."""
    ahead = {name: best.parts.get(name, 0.0) - worst.parts.get(name, 0.0) for name in {**best.parts, **worst.parts}}
    most = max(ahead, key=lambda name: (ahead[name], best.parts.get(name, 0.0)))
    paying = tuple(name for name, more in ahead.items() if more > _SMALL and best.parts.get(name, 0.0) > 0)
    return (most,) if len(paying) < 2 or best.parts.get(most, 0.0) >= worst.reward else paying


def _title(best: Total, worst: Total, culprits: tuple[str, ...], gain: float) -> str:
    """Name what pays: "5 calls of tools (bonus: 5.0) beat a right answer (1.0)"."""
    by = " (by the declared ranges)" if best.declared or worst.declared else ""
    names, least = " and ".join(culprits), _amount(worst.reward)
    if (calls := sum(_calls(best))) and gain > 0:
        beat = "beat" if best.reward > worst.reward + _SMALL else "earn as much as"
        return f"{calls} calls of tools ({names}: {_amount(gain)}) {beat} a right answer ({least}){by}"
    if gain <= 0:
        return f"a wrong answer earns {_amount(best.reward)}, a right one only {least}, by {names}{by}"
    total = f" ({_amount(best.reward)} in all)" if abs(best.reward - gain) > _SMALL else ""
    kind = "a wrong answer" if best.answered else "a text without an answer"
    pays = "together pay" if len(culprits) > 1 else "pays"
    return f"{names} {pays} {_amount(gain)} to {kind}{total}; a right answer may earn only {least}{by}"


def _calls(total: Total) -> list[int]:
    """Count the calls of each message that makes any, of the text of a total that nothing declared is part of."""
    messages = messages_of(total.probe.text.completion) if total.probe is not None and not total.declared else ()
    return [count for message in messages if (count := len(calls_of(message)))]


def _amount(reward: float) -> str:
    """Format a reward with at least one decimal: 5.0, 0.25."""
    text = f"{reward:.6g}"
    return text if "." in text or "e" in text or not math.isfinite(reward) else f"{text}.0"


def _summary(best: Total | None, worst: Total | None, texts: int) -> str:
    if best is None or worst is None:
        missing = [word for word, total in (("right", worst), ("wrong", best)) if total is None]
        return f"of {texts} texts none was {' or '.join(missing)}, so there is nothing to compare"
    alike = best.reward < worst.reward and _amount(best.reward) == _amount(worst.reward)
    most = f"less than {_amount(best.reward)}" if alike else f"at most {_amount(best.reward)}"
    return (
        f"a wrong answer earns {most} ({best.source}), a right one at least {_amount(worst.reward)} "
        f"({worst.source}); {texts} texts"
    )
