"""Checks of a reward: it must pay for the reference, in any style, and for nothing wrong."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.environments.parsers import completion_text
from hone.extensions.audit.answers import Form, answer_of, same_answer, statement_of
from hone.extensions.audit.exploits import EXPLOITS, Deserves, Target, files_made
from hone.extensions.audit.probes import Probe, Prober, Subject, Text, examples_of, failures
from hone.extensions.audit.report import Check, Finding, Verdict, listed
from hone.extensions.audit.restyling import RESTYLINGS

LUCKY_SHARE = 0.1
"""A guess is reported if it is scored as correct in more than this share of the examples."""
GRADED_AGAIN = 8
"""Number of references to grade twice."""
_TINY = 1e-9
_DESERVES = {exploit.name: exploit.deserves for exploit in EXPLOITS}
ByName = Mapping[str, Sequence[Probe]]


def check_reference(prober: Prober) -> Check:
    """Grade the references of the examples: they must be correct, each time."""
    texts = [Text(s, "reference", s.reference) for s in prober.distinct if s.reference is not None]
    if not texts:
        title = "the task declares no reference completion, so nothing right can be tried"
        if prober.tried:
            title += f"; answers written as {listed(prober.tried)} are not correct"
        remedy = "give `reference`: a template such as '<answer>{answer}</answer>', or a function"
        finding = Finding("no-reference", Verdict.WARN, title, remedy)
        return Check("reference", "no reference to grade", (finding,))
    probes = prober.grade(texts)
    findings = failures(probes)
    if wrong := [probe for probe in probes if not probe.correct and not probe.failed]:
        remedy = (
            "correct the reference, the data or the reward: a right answer can earn nothing as it is; the rubric's "
            f"correctness function `{prober.env.rubric.correctness}` must return 1.0 for it"
        )
        title = f"{len(wrong)} of {len(texts)} references are not correct{_derivation(prober)}"
        shown = examples_of(wrong, "correct, with full marks")
        verdict = Verdict.WARN if prober.form else Verdict.FAIL  # a derived reference may itself be at fault
        findings.append(Finding("reference", verdict, title, remedy, ("reference",), shown))
    again = [] if findings and not wrong else prober.grade(texts[:GRADED_AGAIN])
    pairs = [[(p.score.outcome, p.score.reward) for p in pair] for pair in zip(probes, again, strict=False)]
    if changed := [probe for probe, (first, second) in zip(probes, pairs, strict=False) if first != second]:
        title = "the same text was graded in two ways, so nothing is known about what is paid for what"
        remedy = "let the reward depend on the completion and the example alone: no clock, no draws, no memory"
        shown = examples_of(changed, "the same reward each time")
        findings.append(Finding("nondeterministic", Verdict.WARN, title, remedy, (), shown))
    right = sum(probe.correct for probe in probes)
    figures = {"references": len(texts), "correct": right}
    summary = f"{right} of {len(texts)} references are correct{_derivation(prober)}"
    return Check("reference", summary, tuple(findings), figures)


def _derivation(prober: Prober) -> str:
    return f" (derived from the answer as {prober.form})" if prober.form else ""


# Sorts of restylings that lose a right answer: the verdict, their name, and the remedy.
_LOSSES = {
    "growth": (
        Verdict.FAIL,
        "ways to write at greater length",
        "read the answer where it is marked (`ANSWER: 42`, tags, a box), not by its place: completions grow in "
        "training, and the parser would lose answers that are right",
    ),
    "false-negative": (
        Verdict.FAIL,
        "harmless styles",
        "let the parser read these, for a right answer must be paid as one; if a style is truly wrong here, allow it "
        "(`audit_allows`), or set `answer_is_exact` where every character counts",
    ),
    "strict": (
        Verdict.WARN,
        "styles that a strict grader may refuse",
        "read them too, or say in the prompt that they are not accepted",
    ),
    "bare-answer": (
        Verdict.WARN,
        "ways to say something beside the answer",
        "the completion must be the answer and nothing else: say so in the prompt, or mark the answer and parse it; a "
        "model that thinks aloud earns nothing",
    ),
}


def check_restylings(prober: Prober) -> Check:
    """Rewrite the correct references in other styles: they must stay right."""
    subjects = [probe.text.subject for probe in prober.references if probe.correct]
    texts = [
        Text(subject, restyling.name, subject.render(text))
        for subject in subjects
        for restyling in RESTYLINGS
        if (text := restyling.apply(subject, prober.env)) is not None
    ]
    probes = prober.grade(texts)
    by_name = _by_name(probes)
    lost = {name: some for name, all_ in by_name.items() if (some := [p for p in all_ if not (p.correct or p.failed)])}
    bare = _takes_bare_answers(subjects, by_name, lost)
    sorts = {restyling.name: "bare-answer" if bare and restyling.around else restyling.sort for restyling in RESTYLINGS}
    findings = failures(probes)
    for sort, (verdict, styles, remedy) in _LOSSES.items():
        names = tuple(name for name in sorts if sorts[name] == sort and name in lost)
        if names:
            some = [probe for name in names for probe in lost[name]]
            tried, examples = sum(sorts[name] == sort for name in by_name), len({probe.example_id for probe in some})
            title = f"{len(names)} of {tried} {styles} lose a right answer: {listed(names)}"
            title += f" ({examples} of {len({probe.example_id for probe in probes})} examples)"
            if sort == "false-negative" and (prober.form or prober.env.given_reference is not None):
                verdict = Verdict.WARN  # one form of the answer is known, and not that the prompt allows others
            findings.append(Finding(sort, verdict, title, remedy, names, examples_of(some, "correct")))
    figures = {
        "restylings": len(by_name),
        "texts": len(probes),
        "lost": {name: [len(some), len(by_name[name])] for name, some in lost.items()},
    }
    correct_in_all = sum(all(probe.correct for probe in some) for some in by_name.values())
    summary = f"{len(by_name)} ways to write {len(subjects)} right answers: {correct_in_all} keep all of them"
    return Check("restylings", summary, tuple(findings), figures)


def _by_name(probes: Sequence[Probe]) -> dict[str, list[Probe]]:
    by_name: dict[str, list[Probe]] = defaultdict(list)
    for probe in probes:
        by_name[probe.name].append(probe)
    return by_name


def _takes_bare_answers(subjects: Sequence[Subject], by_name: ByName, lost: ByName) -> bool:
    """Return True if no reference marks its answer, and added words are refused (a thought may be accepted)."""
    forms = [statement_of(subject) for subject in subjects]
    around = [r.name for r in RESTYLINGS if r.around and not r.name.startswith("thought") and r.name in by_name]
    unmarked = all(s.form is Form.BARE or (s.form is Form.CODE and s.text == s.marked) for s in forms)
    return bool(around) and unmarked and all(len(lost.get(name, ())) == len(by_name[name]) for name in around)


def check_exploits(prober: Prober, hostile: bool) -> Check:
    """Grade completions that deserve nothing: they must not be correct, paid or executed.

    If `hostile` is true, the check also tries texts that may hang a grader or run code, and `env` must be isolated. If
    it is false, conversations are played with only one example. Examples without a correct reference are left out,
    unless all lack one.
    """
    assert prober.env.isolated or not hostile, "hostile texts need processes that can be killed"
    known = [probe.text.subject for probe in prober.references if probe.correct]
    subjects = known or prober.distinct
    with tempfile.TemporaryDirectory(prefix="hone-") as folder:
        targets = [Target(subject, prober.subjects, prober.env, Path(folder)) for subject in subjects]
        texts = [
            Text(target.subject, exploit.name, script)
            for exploit in EXPLOITS
            if hostile or not exploit.hostile
            for target in (targets if hostile or not exploit.plays else targets[:1])
            for script in exploit.apply(target)
        ]
        probes = prober.grade(texts)
        executed = files_made(Path(folder), {probe.name for probe in probes})
    by_name = _by_name(probes)
    findings = failures(probes)
    if executed:
        title = f"the grader ran what a model wrote ({listed(executed)}): it made a file"
        remedy = "never give a model's text to eval, exec, a shell or sympy; parse it, or run it in hone's sandbox"
        shown = examples_of([probe for name in executed for probe in by_name[name]], "no effect at all")
        findings.append(Finding("side-effect", Verdict.FAIL, title, remedy, executed, shown))
    kinds = (Deserves.NOTHING, Deserves.WRONG, Deserves.LUCK)
    worthless = [probe for probe in probes if _DESERVES[probe.name] in kinds and not probe.failed]
    always = len(worthless) > 2 and all(probe.correct for probe in worthless)
    if always:
        title = "every text is scored as correct, the empty one too"
        remedy = "compare the answer with the right one: a reward that is always the same teaches nothing"
        findings.append(Finding("always-right", Verdict.FAIL, title, remedy, (), examples_of(probes, "not correct")))
    elif known or not prober.references:
        findings += [*_false_positives(prober, by_name, len(subjects)), *_paid_garbage(by_name)]
    worked = {n for f in findings if f.name in ("false-positive", "garbage-paid", "side-effect") for n in f.what}
    counted = len(by_name) if always else len(worked) or "none"
    summary = f"{len(by_name)} ways to be paid for nothing, on {len(subjects)} examples: {counted} worked"
    figures = {"exploits": len(by_name), "texts": len(probes), "executed": list(executed)}
    return Check("exploits", summary, tuple(findings), figures)


def _false_positives(prober: Prober, by_name: ByName, tried: int) -> list[Finding]:
    paid = {name: some for name, probes in by_name.items() if (some := _undeserved(prober, name, probes))}
    if not paid:
        return []
    correct = [probe for some in paid.values() for probe in some]
    examples = len({id(probe.text.subject) for probe in correct})
    exploits = "1 exploit is" if len(paid) == 1 else f"{len(paid)} exploits are"
    names = listed([f"{name} ({_DESERVES[name]})" for name in paid], 4)
    title = f"{exploits} scored as correct on {examples} of {tried} examples: {names}"
    remedy = (
        "parse one answer and compare it as a whole: what states no answer, several or a wrong one is not correct; "
        "of a question with many right answers, or a tolerance, allow those that are right (`audit_allows`)"
    )
    shown = examples_of(correct, "not correct")
    return [Finding("false-positive", Verdict.FAIL, title, remedy, tuple(paid), shown)]


def _undeserved(prober: Prober, name: str, probes: Sequence[Probe]) -> list[Probe]:
    """Return an exploit's probes that were wrongly scored as correct; [] if they are few enough to be luck."""
    deserves = _DESERVES[name]
    found = [p for p in probes if p.correct and deserves is not Deserves.CODE]
    if deserves is Deserves.HEDGE:  # right wherever the right answer stands among the others
        missed = {id(p.text.subject) for p in probes if not p.correct}
        found = [p for p in found if id(p.text.subject) not in missed]
    elif deserves is not Deserves.WRONG:
        found = [p for p in found if not _is_lucky(prober, p)]
    examples, tried = (len({id(p.text.subject) for p in some}) for some in (found, probes))
    return found if examples > LUCKY_SHARE * tried and (examples > 1 or tried <= 2) else []


def _is_lucky(prober: Prober, probe: Probe) -> bool:
    given = prober.env.parser.parse_answer(completion_text(probe.text.completion))
    subject = probe.text.subject
    answers = (answer_of(subject), subject.example.answer)
    return isinstance(given, str) and any(same_answer(given, answer) for answer in answers if answer)


def _paid_garbage(by_name: ByName) -> list[Finding]:
    nothing = {p.example_id: p.score.reward for p in by_name.get("empty", ()) if not p.failed}
    garbage = [
        p
        for name, probes in by_name.items()
        if _DESERVES[name] is Deserves.NOTHING
        for p in probes
        if not p.failed and not p.correct and p.score.reward > max(0.0, nothing.get(p.example_id, 0.0)) + _TINY
    ]
    if not garbage:
        return []
    names = tuple(dict.fromkeys(probe.name for probe in garbage))
    best = max(garbage, key=lambda probe: probe.score.reward).score
    parts = [name for name, value in best.components.items() if value * best.weights[name] > _TINY]
    title = f"texts without an answer earn up to {best.reward:.3g}, by {', '.join(parts)}: {listed(names)}"
    remedy = "pay for form only where a well-formed answer stands in it: this is learnt first, and holds up the rest"
    shown = examples_of(garbage, "what an empty text earns")
    return [Finding("garbage-paid", Verdict.FAIL, title, remedy, names, shown)]
