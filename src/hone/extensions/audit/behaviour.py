"""Checks that a text gets the same reward each time: in another process, and after other texts.

Fresh worker processes compute all rewards, even of `inline` functions. The first process grades the texts in
order, then in reverse. The second process has another hash seed, and grades the texts in order.
"""

from __future__ import annotations

from collections.abc import Sequence

from hone.environments import Environment
from hone.extensions.audit.conversations import REASONING, wrong_text
from hone.extensions.audit.probes import Probe, Prober, Subject, Text
from hone.extensions.audit.report import Check, Finding, Verdict
from hone.types import Outcome

SUBJECTS = 3
MOST_HUNG = 2


def check_behaviour(env: Environment, subjects: Sequence[Subject]) -> Check:
    """Grade a few right, wrong and empty texts in several processes and orders."""
    prober = Prober(env, subjects)
    with env.fresh_process(0) as isolated:
        first = _in_order(prober, behaviour_texts(subjects[:SUBJECTS]))
        first = [probe for probe in first if probe.score.outcome is not Outcome.GRADER_TIMEOUT]
        texts = [probe.text for probe in first]
        backwards = _in_order(prober, texts[::-1])
    findings = []
    if isolated:
        with env.fresh_process(1):
            title = "the same text gets another reward in another process"
            remedy = (
                "draw from the reward function's argument `rng`; use no clock, no hash() of a text, no order of a set"
            )
            findings = _difference("nondeterministic", title, remedy, first, _in_order(prober, texts))
    if not findings and len(backwards) == len(first):
        title = "the reward of a text depends on what was graded before it"
        remedy = "keep no state between gradings: no module variables, caches that change rewards, unseeded generators"
        findings = _difference("global-state", title, remedy, first, backwards[::-1])
    where = "in two processes and two orders" if isolated else "in one process: no new process can load the task"
    summary = f"{len(texts)} texts were graded twice or more, {where}"
    return Check("behaviour", summary, tuple(findings), {"texts": len(texts), "isolated": isolated})


def behaviour_texts(subjects: Sequence[Subject]) -> list[Text]:
    texts: list[Text] = []
    everything = "\n".join(subject.text for subject in subjects if subject.text)
    for subject in subjects:
        kinds = {"empty": "", "reasoning without an answer": REASONING}
        if subject.text:
            kinds |= {"a right answer": subject.text, "a right answer and a line break": f"{subject.text}\n"}
            kinds["several answers"] = f"{everything}\n{REASONING}\n{subject.text}"
            if not texts:  # tools of the reference are called once, as they may be slow
                texts.append(Text(subject, "a right answer", subject.render(subject.text)))
        if (wrong := wrong_text(subject, subjects)) is not None:
            kinds |= {"a wrong answer": wrong, "a long wrong answer": f"{REASONING * 5}\n{wrong}"}
        texts += [Text(subject, name, text) for name, text in kinds.items()]
    return texts


def _in_order(prober: Prober, texts: Sequence[Text]) -> list[Probe]:
    probes: list[Probe] = []
    for text in texts:
        prober.hung.clear()
        probes += prober.grade([text])
        if sum(probe.score.outcome is Outcome.GRADER_TIMEOUT for probe in probes) == MOST_HUNG:
            break
    return probes


def _difference(name: str, title: str, remedy: str, first: Sequence[Probe], others: Sequence[Probe]) -> list[Finding]:
    for one, other in zip(first, others, strict=False):
        had, got = (f"no reward ({p.score.outcome})" if p.failed else f"{p.score.reward:.6g}" for p in (one, other))
        if had != got:
            shown = tuple(probe.evidence("the same each time") for probe in (one, other))
            title = f"{title}: {one.name!r} gets {got} instead of {had}"
            return [Finding(name, Verdict.FAIL, title, remedy, (one.name,), shown)]
    return []
