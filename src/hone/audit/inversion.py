"""Whether a wrong answer can earn as much as a right one: a policy finds that, and stops to look for right answers.

The most that a wrong answer earns stands against the least that a right one does. Both follow from the ranges that the
rubric declares for its components, taken as reachable together, and from texts and conversations that were graded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hone.audit.probes import Probe, Prober
from hone.audit.report import Check, Finding, Shown, Verdict
from hone.audit.telling import answers_told
from hone.audit.totals import Total, as_figures, component_line, most_telling, totals_of, words_of
from hone.audit.trajectories import inversion_texts
from hone.environments import MultiTurnEnv, Range, Rubric, arguments_of, calls_of
from hone.errors import UserError
from hone.types import Outcome

SUBJECTS = 4
"""Examples that are tried with the texts and conversations of this check."""
MOST_WORDS = 2_000
"""Texts of more words decide no total: few runs have room for them."""
_SMALL = 1e-9


def check_inversion(prober: Prober, probes: Sequence[Probe]) -> Check:
    """Compares the best wrong answer with the worst right one. `probes` are the texts that were graded so far; those
    that try what is paid beside the answer are added here.
    """
    tried, played = _tried(prober)
    graded = [probe for probe in (*probes, *tried) if not probe.failed]
    rubric = prober.env.rubric
    fair = [probe for probe in graded if words_of(probe) <= MOST_WORDS]
    right = [probe for probe in fair if probe.correct]
    wrong = [probe for probe in fair if not probe.correct]
    worst = min(
        totals_of(rubric, right, right_answers=True), key=lambda total: (total.reward, total.words), default=None
    )
    totals = list(totals_of(rubric, wrong, right_answers=False))
    best = max(totals, key=most_telling, default=None)
    findings = [*_out_of_range(rubric, graded), *_undeclared(rubric, right, wrong), *played]
    if worst is not None and best is not None and best.reward >= worst.reward:
        findings.insert(0, _inversion(prober, _plainest(prober, totals, worst), best, worst))
    figures = {
        "components": [component_line(rubric, name, right, wrong) for name in rubric.funcs],
        "best_wrong": as_figures(best),
        "worst_right": as_figures(worst),
        "texts": len(graded),
    }
    return Check("inversion", _summary(best, worst, len(graded)), tuple(findings), figures)


def _tried(prober: Prober) -> tuple[list[Probe], list[Finding]]:
    """The texts of this check, graded; and what else the conversations show, if only that none can be played here."""
    env = prober.env
    turns = env.max_turns if isinstance(env, MultiTurnEnv) else 1
    subjects = prober.distinct[: SUBJECTS if turns <= 16 else 2]
    try:
        env.check_rollouts()
    except UserError as error:
        remedy = "audit it on a machine where it can be sampled"
        note = Finding("not-played", Verdict.NOTE, f"no conversation was played: {error}", remedy)
        return [], [note]
    return prober.grade(inversion_texts(env, subjects)), answers_told(prober)


def _out_of_range(rubric: Rubric, probes: Sequence[Probe]) -> list[Finding]:
    """A finding if a component returned what its declared range does not hold."""
    outside: dict[str, Probe] = {}
    for probe in probes:
        for name, value in probe.score.components.items():
            held = _range_of(rubric.ranges.get(name), probe)
            if held is not None and not held[0] - _SMALL <= value <= held[1] + _SMALL:
                outside.setdefault(name, probe)
    if not outside:
        return []
    words, shown = [], []
    for name, probe in outside.items():
        low, high = _range_of(rubric.ranges[name], probe) or (0.0, 0.0)
        kind = "right" if probe.correct else "wrong"
        expected = f"{name} from {low:g} to {high:g}"
        words.append(f"{name} is {probe.score.components[name]:g} for a {kind} answer and declares {low:g} to {high:g}")
        shown.append(probe.shown(expected))
    return [
        Finding(
            "range",
            Verdict.FAIL,
            f"a component leaves its declared range: {'; '.join(words)}",
            "correct the function, or the range in Rubric(ranges=...)",
            tuple(outside),
            tuple(shown),
        )
    ]


def _range_of(given: Range | None, probe: Probe) -> tuple[float, float] | None:
    """The declared range that holds for a text; ranges say nothing about texts without a well-formed answer."""
    if given is None or probe.score.outcome not in (Outcome.CORRECT, Outcome.WRONG):
        return None
    return given.right if probe.correct else given.wrong


def _undeclared(rubric: Rubric, right: Sequence[Probe], wrong: Sequence[Probe]) -> list[Finding]:
    missing = [name for name in rubric.funcs if name not in rubric.ranges and rubric.weights[name]]
    if len(rubric.funcs) == 1 or not missing:
        return []
    names = ", ".join(missing)
    found = [
        f'"{name}": Range(right={_ends(name, right)}, wrong={_ends(name, wrong)})'
        for name in missing
        if right and wrong
    ]
    values = f", with all that the functions can return; found were {{{', '.join(found)}}}" if found else ""
    return [
        Finding(
            "undeclared-ranges",
            Verdict.NOTE,
            f"no range is declared for {names}: what they can pay is known from the texts tried here alone",
            f"declare them: Rubric(..., ranges={{NAME: Range(right=(LEAST, MOST), wrong=(LEAST, MOST))}}){values}",
            tuple(missing),
        )
    ]


def _ends(name: str, probes: Sequence[Probe]) -> tuple[float, float]:
    """The least and the greatest value of a component among texts; 0 where it always abstained."""
    values = [probe.score.components.get(name, 0.0) for probe in probes]
    return (min(values), max(values))


def _plainest(prober: Prober, totals: Sequence[Total], worst: Total) -> Total:
    """Of the totals that reach the right answer's, the one to tell of: that of a text rather than of declared ranges,
    and if calls of tools are what pays, one of single calls rather than of many in a message.
    """
    reached = [total for total in totals if total.reward >= worst.reward]
    found = [total for total in reached if not total.declared] or reached
    best = max(found, key=most_telling)
    if not _calls(prober, best):
        return best
    single = [total for total in found if max(_calls(prober, total), default=0) == 1]
    return max(single, key=lambda total: (*most_telling(total)[:2], -sum(_calls(prober, total))), default=best)


def _inversion(prober: Prober, told: Total, best: Total, worst: Total) -> Finding:
    """`told` is the wrong answer that the finding tells of, `best` the one that earns most."""
    shown: list[Shown] = []
    if told.probe is not None:
        shown.append(told.probe.shown(f"less than a right answer, which earns {_amount(worst.reward)}"))
    if worst.probe is not None:
        shown.append(worst.probe.shown(f"more than a wrong answer, which earns {_amount(told.reward)}"))
    culprits = _culprits(told, worst)
    gain = sum(told.parts.get(name, 0.0) for name in culprits)
    remedy = "let all that a wrong answer can earn stay below what a right one earns for sure"
    room = worst.reward - (told.reward - gain)
    if gain > 0 and room > 0:
        remedy += f": {_listed(culprits)} must add less than {_amount(room)}{' together' * (len(culprits) > 1)}"
    rubric = prober.env.rubric
    if rubric.weights[rubric.correctness] <= 0:
        remedy = f"give {rubric.correctness}, which says what is right, a weight above 0"
    title = _inversion_title(prober, told, worst, culprits)
    if best.reward > told.reward + _SMALL:
        calls = sum(_calls(prober, best))
        title += f"; up to {_amount(best.reward)} " + (f"with {calls} calls" if calls else f"({best.source})")
    return Finding("inversion", Verdict.FAIL, title, remedy, culprits, tuple(shown))


def _culprits(best: Total, worst: Total) -> tuple[str, ...]:
    """The component that gives a wrong answer most of what it has before a right one, the others that do so too if
    that is not enough to make up for a right answer.
    """
    before = {name: value - worst.parts.get(name, 0.0) for name, value in best.parts.items()}
    before |= {name: -value for name, value in worst.parts.items() if name not in before}
    most = max(before, key=lambda name: (before[name], best.parts.get(name, 0.0)))
    paying = tuple(name for name, more in before.items() if more > _SMALL and best.parts.get(name, 0.0) > 0)
    return (most,) if len(paying) < 2 or best.parts.get(most, 0.0) >= worst.reward else paying


def _inversion_title(prober: Prober, best: Total, worst: Total, culprits: tuple[str, ...]) -> str:
    """The sentence that names what pays: "five calls of look (bonus: 5.0) beat a right answer without any (1.0)"."""
    gain = sum(best.parts.get(name, 0.0) for name in culprits)
    loss = sum(worst.parts.get(name, 0.0) for name in culprits)
    more = abs(best.reward - gain) > _SMALL
    how = {"declared": " (by the declared ranges)", "partly declared": " (in part by the declared ranges)"}
    by = next((how[total.source] for total in (best, worst) if total.source in how), "")
    culprit, least = _listed(culprits), _amount(worst.reward)
    calls = sum(_calls(prober, best))
    if calls and gain > 0:
        part = f"{culprit}: {_amount(gain)}" + (f" of {_amount(best.reward)}" if more else "")
        without = " without any" if worst.probe is not None and not _calls(prober, worst) else ""
        beat = "beat" if best.reward > worst.reward + _SMALL else "earn as much as"
        verb = beat if calls > 1 else beat.replace("beat", "beats").replace("earn", "earns")
        return f"{_called(best, calls)} ({part}) {verb} a right answer{without} ({least}){by}"
    if gain <= 0 and loss < 0:
        return (
            f"{culprit} takes {_amount(-loss)} from a right answer, which then earns {least}; a wrong one earns "
            f"{_amount(best.reward)}{by}"
        )
    total = f" ({_amount(best.reward)} in all)" if more else ""
    kind = "a wrong answer" if best.answered else "a text without an answer"
    pays = "together pay" if len(culprits) > 1 else "pays"
    return f"{culprit} {pays} {_amount(gain)} to {kind}{total}; a right answer may earn only {least}{by}"


def _calls(prober: Prober, total: Total) -> list[int]:
    """How many calls each message of a conversation makes that makes any, up to the last turn that is allowed."""
    env = prober.env
    if total.declared or total.probe is None or not isinstance(env, MultiTurnEnv):
        return []
    completion = total.probe.text.completion
    turns = [] if isinstance(completion, str) else [m for m in completion if m.get("role") == "assistant"]
    return [count for message in turns[: env.max_turns] if (count := len(calls_of(message)))]


def _called(total: Total, calls: int) -> str:
    """`five calls of look_up`, or `of tools` if there are several."""
    assert total.probe is not None
    completion = total.probe.text.completion
    messages = [] if isinstance(completion, str) else completion
    names = {arguments_of(call)[0] or "a malformed tool" for message in messages for call in calls_of(message)}
    return f"{_number(calls)} call{'s' * (calls > 1)} of {next(iter(names)) if len(names) == 1 else 'tools'}"


def _amount(reward: float) -> str:
    """A reward with at least one decimal: 5.0, 0.25."""
    text = f"{reward:.6g}"
    return text if "." in text or "e" in text or not math.isfinite(reward) else f"{text}.0"


def _listed(names: Sequence[str]) -> str:
    """`a, b and c`"""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _number(count: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    return words[count] if count < len(words) else str(count)


def _summary(best: Total | None, worst: Total | None, texts: int) -> str:
    if best is None or worst is None:
        missing = [word for word, total in (("right", worst), ("wrong", best)) if total is None]
        return f"of {texts} texts none was {' or '.join(missing)}, so there is nothing to compare"
    if not math.isfinite(best.reward) or not math.isfinite(worst.reward):
        return f"a declared range is infinite: wrong up to {best.reward:g}, right from {worst.reward:g}"
    alike = best.reward < worst.reward and _amount(best.reward) == _amount(worst.reward)
    most = f"less than {_amount(best.reward)}" if alike else f"at most {_amount(best.reward)}"
    return (
        f"a wrong answer earns {most} ({best.source}), a right one at least {_amount(worst.reward)} "
        f"({worst.source}); {texts} texts"
    )
