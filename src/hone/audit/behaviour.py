"""Checks that a text gets the same reward each time: in another process, twice in a row, and after other texts.

If it does not, nobody can repeat the run, and advantages compare luck. Rewards are computed in
fresh worker processes, functions marked `inline` too: one has the texts in order, then each twice, from the last to the
first; the other has them in order again, with another hash seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hone.audit.conversations import REASONING, wrong_text
from hone.audit.probes import Probe, Prober, Subject, Text
from hone.audit.report import Check, Finding, Verdict
from hone.environments import Environment
from hone.types import Outcome

SUBJECTS = 3
MOST_HUNG = 2
_FORGET = "keep nothing between two gradings: no module variables, caches that pay, generators without a seed"
# What may differ: the title, the remedy, and what should hold.
_DIFFERENCES = {
    "process": (
        "nondeterministic",
        "the same text gets another reward in another process",
        "draw from the argument `rng` of the reward function; use no clock, no hash() of a text, no order of a set",
        "the same in each process",
    ),
    "again": (
        "global-state",
        "the same text gets another reward when it is graded again",
        _FORGET,
        "the same each time",
    ),
    "order": (
        "order-dependent",
        "the reward of a text depends on what was graded before it",
        _FORGET,
        "the same whatever came before",
    ),
}


def check_behaviour(env: Environment, subjects: Sequence[Subject]) -> Check:
    """Grade a few right, wrong and empty texts in several processes and orders."""
    texts = behaviour_texts(subjects[:SUBJECTS])
    prober = Prober(env, subjects)
    with env.fresh_process(0) as isolated:
        first: list[Probe] = []
        hung = 0
        for text in texts:
            probe = _grade(prober, text)
            hung += probe.score.outcome is Outcome.GRADER_TIMEOUT
            if hung == MOST_HUNG:
                break
            if probe.score.outcome is not Outcome.GRADER_TIMEOUT:
                first.append(probe)
        texts = [probe.text for probe in first]
        again = [(_grade(prober, text), _grade(prober, text)) for text in reversed(texts)][::-1]
    finding = _between_processes(prober, texts, first) if isolated else None
    finding = finding or _within_a_process(prober, first, again, isolated)
    where = "in two processes and two orders" if isolated else "in one process, for no new one can load the task"
    summary = f"{len(texts)} texts were graded three times each or more, {where}"
    figures = {"texts": len(texts), "isolated": isolated}
    return Check("behaviour", summary, (finding,) if finding else (), figures)


def behaviour_texts(subjects: Sequence[Subject]) -> list[Text]:
    """Return right, wrong, long, empty and ambiguous texts of the subjects."""
    texts: list[Text] = []
    everything = "\n".join(subject.text for subject in subjects if subject.text)
    for subject in subjects:
        kinds = {"empty": "", "reasoning without an answer": REASONING}
        if subject.text:
            kinds |= {"a right answer": subject.text, "a right answer and a line break": f"{subject.text}\n"}
            kinds["several answers"] = f"{everything}\n{REASONING}\n{subject.text}"
            if not texts:  # tools of the reference are called once, for they may take their time
                texts.append(Text(subject, "a right answer", subject.render(subject.text)))
        if (wrong := wrong_text(subject, subjects)) is not None:
            kinds |= {"a wrong answer": wrong, "a long wrong answer": f"{REASONING * 5}\n{wrong}"}
        texts += [Text(subject, name, text) for name, text in kinds.items()]
    return texts


def _grade(prober: Prober, text: Text) -> Probe:
    """Grade one text at a time, so that each comes after the one before it, also if one hung before."""
    prober.hung.clear()
    return prober.grade([text])[0]


def _graded_anew(prober: Prober, texts: Sequence[Text], hash_seed: int = 0) -> list[Probe]:
    """Grade the texts in order in a new process."""
    with prober.env.fresh_process(hash_seed):
        return [_grade(prober, text) for text in texts]


def _between_processes(prober: Prober, texts: Sequence[Text], first: Sequence[Probe]) -> Finding | None:
    pair = _first_difference(first, _graded_anew(prober, texts, hash_seed=1))
    return _finding("process", *pair) if pair else None


def _within_a_process(
    prober: Prober, first: Sequence[Probe], again: Sequence[tuple[Probe, Probe]], isolated: bool
) -> Finding | None:
    """Return `global-state` if a text graded again gets another reward, `order-dependent` if other texts change it."""
    if repeated := _first_difference(*zip(*again, strict=True)) if again else None:
        return _finding("again", *repeated)
    changed = _first_difference(first, [one for one, _ in again])
    if changed is None:
        return None
    if isolated:
        alone = _graded_anew(prober, [changed[0].text] * 3)
        repeated = _first_difference([alone[0]] * 2, alone[1:])
        return _finding("again", *repeated) if repeated else _finding("order", *changed)
    return _finding("again", *changed)


def _first_difference(ones: Sequence[Probe], others: Sequence[Probe]) -> tuple[Probe, Probe] | None:
    return next((pair for pair in zip(ones, others, strict=True) if _result(pair[0]) != _result(pair[1])), None)


def _result(probe: Probe) -> tuple[Any, ...]:
    score = probe.score
    reward = None if math.isnan(score.reward) else score.reward
    return score.outcome, reward, tuple(sorted(score.components.items()))


def _finding(kind: str, one: Probe, two: Probe) -> Finding:
    name, title, remedy, expected = _DIFFERENCES[kind]
    title = f"{title}: {one.name!r} gets {_got(two, one)} in place of {_got(one, two)}"
    return Finding(name, Verdict.FAIL, title, remedy, (one.name,), (one.evidence(expected), two.evidence(expected)))


def _got(probe: Probe, other: Probe) -> str:
    """Say what a text got, in as few words as tell it from what else it got."""
    if probe.failed:
        return str(probe.score.outcome)
    if probe.score.reward != other.score.reward:
        return f"{probe.score.reward:.6g}"
    if probe.score.outcome != other.score.outcome:
        return str(probe.score.outcome)
    return ", ".join(f"{name} {value:.6g}" for name, value in probe.score.components.items())
