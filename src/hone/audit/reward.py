"""The checks of a reward: does it pay for the reference, however that is written, and for nothing that is wrong?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hone.audit.failures import failures, is_steady, listed, shown, unsteady
from hone.audit.paying import check_exploits
from hone.audit.probes import Probe, Prober, Subject, Text
from hone.audit.report import Check, Finding, Verdict
from hone.audit.restyling import RESTYLINGS, Restyling
from hone.audit.statement import Form, statement_of

__all__ = ["check_exploits", "check_reference", "check_restylings"]
_TINY = 1e-9


def check_reference(prober: Prober) -> tuple[Check, list[Probe]]:
    """Whether the references of the examples are correct, and score what the task declares as the best."""
    texts = [Text(s, "reference", s.reference) for s in prober.distinct if s.reference is not None]
    probes = prober.grade(texts)
    if not texts:
        finding = Finding(
            "no-reference",
            Verdict.WARN,
            "the task declares no reference completion, so nothing right can be tried",
            "define `reference(example) -> str`, a completion that deserves full marks",
        )
        return Check("reference", "no reference to grade", (finding,)), []
    broken = failures(probes)
    wrong = [probe for probe in probes if not probe.correct and not probe.failed]
    findings = list(broken)
    if wrong and not is_steady(prober, wrong):
        findings += unsteady(prober, wrong)
    elif wrong:
        findings.append(
            Finding(
                "reference",
                Verdict.FAIL,
                f"{len(wrong)} of {len(texts)} references are not correct",
                "correct the reference, the data or the reward: a right answer can earn nothing as it is; the rubric's "
                f"correctness function `{prober.env.rubric.correctness}` must return 1.0 for it",
                ("reference",),
                shown(wrong, "correct, with full marks"),
            )
        )
    right = [probe for probe in probes if probe.correct]
    findings += _below_best(prober, right)
    rewards = [probe.score.reward for probe in right]
    figures = {"references": len(texts), "correct": len(right)} | (
        {"reward": {"least": min(rewards), "most": max(rewards)}} if rewards else {}
    )
    return Check("reference", f"{len(right)} of {len(texts)} references are correct", tuple(findings), figures), probes


def check_restylings(prober: Prober, reference: Sequence[Probe]) -> tuple[Check, list[Probe]]:
    """Whether a right answer is still one when it is written in another way.

    `reference` are the probes of `check_reference`; only references that are correct are restyled.
    """
    paid = {probe.text.subject.example.id: probe.score.reward for probe in reference if probe.correct}
    subjects = [subject for subject in prober.distinct if subject.example.id in paid]
    chosen = {r.name: r for r in RESTYLINGS}
    texts = [
        Text(subject, name, subject.saying(text))
        for subject in subjects
        for name, restyling in chosen.items()
        if (text := restyling.apply(subject, prober.env)) is not None
    ]
    probes = prober.grade(texts)
    tried = {probe.name for probe in probes}
    by_name = {name: [probe for probe in probes if probe.name == name] for name in chosen if name in tried}
    lost = {name: some for name, of in by_name.items() if (some := [p for p in of if not p.correct and not p.failed])}
    bare = _takes_bare_answers(subjects, by_name, lost)
    findings = failures(probes)
    doubtful = [probe for some in lost.values() for probe in some]
    doubtful += [p for p in probes if p.correct and p.score.reward < paid[p.text.subject.example.id] - _TINY]
    if is_steady(prober, doubtful):
        findings += [*_lost(lost, by_name, chosen, bare), *_costs(probes, paid)]
    else:
        findings += unsteady(prober, doubtful)
    figures = {
        "restylings": len(by_name),
        "texts": len(probes),
        "lost": {name: [len(some), len(by_name[name])] for name, some in lost.items()},
    }
    if not subjects:
        return Check("restylings", "no correct reference to restyle", (), figures), []
    kept = sum(all(probe.correct for probe in some) for some in by_name.values())
    summary = f"{len(by_name)} ways to write {len(subjects)} right answers: {kept} keep all of them"
    return Check("restylings", summary, tuple(findings), figures), probes


def _below_best(prober: Prober, right: Sequence[Probe]) -> list[Finding]:
    """References that are correct, but worth less than the declared ranges allow."""
    rubric = prober.env.rubric
    if not right or rubric.ranges.keys() != rubric.funcs.keys():
        return []
    best = sum(max(weight * end for end in rubric.ranges[name].right) for name, weight in rubric.weights.items())
    less = [probe for probe in right if probe.score.reward < best - _TINY]
    if not less or not math.isfinite(best):
        return []
    title = f"{len(less)} of {len(right)} references earn less than the declared best of {best:g}"
    remedy = "let `reference` earn every component, or narrow the declared range given a right answer"
    return [Finding("reference-below-best", Verdict.NOTE, title, remedy, (), shown(less, f"a reward of {best:g}"))]


def _takes_bare_answers(
    subjects: Sequence[Subject], by_name: dict[str, list[Probe]], lost: dict[str, list[Probe]]
) -> bool:
    """Whether the completion is to be the answer and nothing else: no reference marks it, and all that adds something
    to say before or after it is refused. A thought is not said, and may be taken.
    """
    forms = [statement_of(subject) for subject in subjects]
    if not forms or not all(s.form is Form.BARE or (s.form is Form.CODE and s.text == s.said) for s in forms):
        return False
    saying = [restyling.name for restyling in RESTYLINGS if restyling.around and restyling.group != "thought"]
    around = [name for name in saying if name in by_name]
    return bool(around) and all(len(lost.get(name, ())) == len(by_name[name]) for name in around)


@dataclass(frozen=True)
class _Loss:
    """What it means that restylings of one sort lose a right answer."""

    verdict: Verdict
    of: str
    remedy: str


_LOSSES = {
    "growth": _Loss(
        Verdict.FAIL,
        "ways to write at greater length",
        "read the answer where it is marked (`ANSWER: 42`, tags, a box), not by its place: completions grow in "
        "training, and the parser would lose answers that are right",
    ),
    "false-negative": _Loss(
        Verdict.FAIL,
        "harmless styles",
        "let the parser read these, for a right answer must be paid as one; if a style is truly wrong here, allow it "
        "(`audit_allows`), or set `answer_is_exact` where every character counts",
    ),
    "strict": _Loss(
        Verdict.WARN,
        "styles that a strict grader may refuse",
        "read them too, or say in the prompt that they are not accepted",
    ),
    "bare-answer": _Loss(
        Verdict.WARN,
        "ways to say something beside the answer",
        "the completion must be the answer and nothing else: say so in the prompt, or mark the answer and parse it; a "
        "model that thinks aloud earns nothing",
    ),
}


def _lost(
    lost: dict[str, list[Probe]], by_name: dict[str, list[Probe]], chosen: dict[str, Restyling], bare: bool
) -> list[Finding]:
    sorts: dict[str, list[str]] = {sort: [] for sort in _LOSSES}
    for name in lost:
        sorts[_sort(chosen[name], bare)].append(name)
    total = _examples([probe for probes in by_name.values() for probe in probes])
    findings = []
    for sort, names in sorts.items():
        if names:
            loss, probes = _LOSSES[sort], [probe for name in names for probe in lost[name]]
            tried = sum(_sort(chosen[name], bare) == sort for name in by_name)
            title = (
                f"{len(names)} of {tried} {loss.of} lose a right answer: {listed(names)} "
                f"({_examples(probes)} of {total} examples)"
            )
            findings.append(Finding(sort, loss.verdict, title, loss.remedy, tuple(names), shown(probes, "correct")))
    return findings


def _sort(styling: Restyling, bare: bool) -> str:
    """What it is if a restyling loses a right answer; `bare`: the completion is to be the answer and nothing else."""
    if bare and styling.around:
        return "bare-answer"
    return "growth" if styling.growth else "strict" if styling.arguable else "false-negative"


def _examples(probes: Sequence[Probe]) -> int:
    return len({probe.text.subject.example.id for probe in probes})


def _costs(probes: Sequence[Probe], paid: dict[str, float]) -> list[Finding]:
    less = [p for p in probes if p.correct and p.score.reward < paid[p.text.subject.example.id] - _TINY]
    if not less:
        return []
    names = tuple(dict.fromkeys(probe.name for probe in less))
    most = max(paid[probe.text.subject.example.id] - probe.score.reward for probe in less)
    styles = "harmless style costs" if len(names) == 1 else "harmless styles cost"
    title = f"{len(names)} {styles} a right answer up to {most:.3g} of its reward: {listed(names)}"
    remedy = "make sure that this is meant: what is paid for style is not paid for the answer"
    return [Finding("style-costs", Verdict.WARN, title, remedy, names, shown(less, "the reward of the reference"))]
