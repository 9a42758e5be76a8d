"""The checks of a reward: does it pay for the reference, however that is written, and for nothing that is wrong?"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.audit.answers import Form, answer_of, same_answer, statement_of
from hone.audit.exploits import EXPLOITS, Deserves, files_made
from hone.audit.probes import Probe, Prober, Subject, Text, examples_of, failures
from hone.audit.report import Check, Finding, Verdict, listed
from hone.audit.restyling import RESTYLINGS, Restyling
from hone.environments.parsers import completion_text

LUCKY_SHARE = 0.1
"""An answer right by luck counts if it pays in more than this share of the examples."""
_TINY = 1e-9
_DESERVES = {exploit.name: exploit.deserves for exploit in EXPLOITS}
ByName = Mapping[str, Sequence[Probe]]


def check_reference(prober: Prober) -> tuple[Check, list[Probe]]:
    """Grade the references of the examples: they must be correct, and score what the task declares as the best."""
    texts = [Text(s, "reference", s.reference) for s in prober.distinct if s.reference is not None]
    probes = prober.grade(texts)
    if not texts:
        title = "the task declares no reference completion, so nothing right can be tried"
        remedy = "define `reference(example) -> str`, a completion that deserves full marks"
        finding = Finding("no-reference", Verdict.WARN, title, remedy)
        return Check("reference", "no reference to grade", (finding,)), []
    wrong = [probe for probe in probes if not probe.correct and not probe.failed]
    findings = failures(probes)
    if wrong and not prober.is_steady(wrong):
        findings += prober.unsteady_findings(wrong)
    elif wrong:
        remedy = (
            "correct the reference, the data or the reward: a right answer can earn nothing as it is; the rubric's "
            f"correctness function `{prober.env.rubric.correctness}` must return 1.0 for it"
        )
        title = f"{len(wrong)} of {len(texts)} references are not correct"
        shown = examples_of(wrong, "correct, with full marks")
        findings.append(Finding("reference", Verdict.FAIL, title, remedy, ("reference",), shown))
    right = [probe for probe in probes if probe.correct]
    figures = {"references": len(texts), "correct": len(right)}
    return Check("reference", f"{len(right)} of {len(texts)} references are correct", tuple(findings), figures), probes


# A sort of restylings that lose a right answer: how bad that is, what they are, and the remedy.
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


def check_restylings(prober: Prober, reference: Sequence[Probe]) -> tuple[Check, list[Probe]]:
    """Write right answers in other ways: they must stay right.

    `reference` are the probes of `check_reference`; only references that are correct are restyled.
    """
    right = {probe.example_id for probe in reference if probe.correct}
    subjects = [subject for subject in prober.distinct if subject.example.id in right]
    texts = [
        Text(subject, restyling.name, subject.render(text))
        for subject in subjects
        for restyling in RESTYLINGS
        if (text := restyling.apply(subject, prober.env)) is not None
    ]
    probes = prober.grade(texts)
    by_name = _by_name(probes)
    lost = {name: some for name, all_ in by_name.items() if (some := [p for p in all_ if not (p.correct or p.failed)])}
    findings = failures(probes)
    doubtful = [probe for some in lost.values() for probe in some]
    if prober.is_steady(doubtful):
        findings += _lost(lost, by_name, _takes_bare_answers(subjects, by_name, lost))
    else:
        findings += prober.unsteady_findings(doubtful)
    figures = {
        "restylings": len(by_name),
        "texts": len(probes),
        "lost": {name: [len(some), len(by_name[name])] for name, some in lost.items()},
    }
    kept = sum(all(probe.correct for probe in some) for some in by_name.values())
    summary = f"{len(by_name)} ways to write {len(subjects)} right answers: {kept} keep all of them"
    return Check("restylings", summary, tuple(findings), figures), probes


def _by_name(probes: Sequence[Probe]) -> dict[str, list[Probe]]:
    by_name: dict[str, list[Probe]] = defaultdict(list)
    for probe in probes:
        by_name[probe.name].append(probe)
    return by_name


def _takes_bare_answers(subjects: Sequence[Subject], by_name: ByName, lost: ByName) -> bool:
    """Return True if the completion must be the answer alone: no reference marks it, and texts with words before or
    after it are refused. A thought may be taken.
    """
    forms = [statement_of(subject) for subject in subjects]
    if not forms or not all(s.form is Form.BARE or (s.form is Form.CODE and s.text == s.marked) for s in forms):
        return False
    around = [r.name for r in RESTYLINGS if r.around and not r.name.startswith("thought") and r.name in by_name]
    return bool(around) and all(len(lost.get(name, ())) == len(by_name[name]) for name in around)


def _lost(lost: ByName, by_name: ByName, bare: bool) -> list[Finding]:
    """Return a finding for each sort of restylings that lose right answers."""
    total = len({probe.example_id for probes in by_name.values() for probe in probes})
    findings = []
    for sort, (verdict, styles, remedy) in _LOSSES.items():
        names = tuple(restyling.name for restyling in RESTYLINGS if _sort(restyling, bare) == sort)
        names, tried = tuple(n for n in names if n in lost), sum(n in by_name for n in names)
        probes = [probe for name in names for probe in lost[name]]
        if names:
            examples = len({probe.example_id for probe in probes})
            title = f"{len(names)} of {tried} {styles} lose a right answer: {listed(names)}"
            title += f" ({examples} of {total} examples)"
            findings.append(Finding(sort, verdict, title, remedy, names, examples_of(probes, "correct")))
    return findings


def _sort(restyling: Restyling, bare: bool) -> str:
    if bare and restyling.around:
        return "bare-answer"
    return "growth" if restyling.growth else "strict" if restyling.arguable else "false-negative"


def check_exploits(prober: Prober, hostile: bool, graded: Sequence[Probe] = ()) -> tuple[Check, list[Probe]]:
    """Grade completions that deserve nothing: they must not be correct, or paid, or run.

    `hostile` also tries texts that may cost a grader time or safety: the environment must be isolated then, as a text
    may hang it, and code in it would run in this process. The references in `graded`, the probes so far, say which
    examples to leave out: without a correct reference, nobody knows what is wrong. Conversations wait for their tools:
    without `hostile` they are played with one example.
    """
    reference = [probe for probe in graded if probe.name == "reference"]
    assert prober.env.isolated or not hostile, "hostile texts are graded in processes that can be ended"
    if reference and all(probe.failed for probe in reference):
        return Check("exploits", "not looked at: the grader fails on each reference"), []
    known = [probe.text.subject for probe in reference if probe.correct]
    subjects = known or prober.distinct
    with tempfile.TemporaryDirectory(prefix="hone-") as folder:
        texts = [
            Text(subject, exploit.name, script)
            for exploit in EXPLOITS
            if hostile or not exploit.hostile
            for subject in (subjects if hostile or not exploit.plays else subjects[:1])
            for script in exploit.apply(subject, prober.subjects, prober.env, Path(folder))
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
    elif known or not reference:
        findings += _paid(prober, by_name, len(subjects))
    worked = {n for f in findings if f.name in ("false-positive", "garbage-paid", "side-effect") for n in f.what}
    counted = len(by_name) if always else len(worked) or "none"
    summary = f"{len(by_name)} ways to be paid for nothing, on {len(subjects)} examples: {counted} worked"
    figures = {"exploits": len(by_name), "texts": len(probes), "executed": list(executed)}
    return Check("exploits", summary, tuple(findings), figures), probes


def _paid(prober: Prober, by_name: ByName, tried: int) -> list[Finding]:
    """Find exploits that were wrongly scored as correct, and texts paid without an answer."""
    paid = {name: some for name, probes in by_name.items() if (some := _undeserved(prober, name, probes))}
    nothing = {p.example_id: p.score.reward for p in by_name.get("empty", ()) if not p.failed}
    garbage = [
        p
        for name, probes in by_name.items()
        if _DESERVES[name] is Deserves.NOTHING
        for p in probes
        if not p.failed and not p.correct and p.score.reward > max(0.0, nothing.get(p.example_id, 0.0)) + _TINY
    ]
    correct = [probe for some in paid.values() for probe in some]
    thought = [p for n, some in by_name.items() if _DESERVES[n] is Deserves.THOUGHT for p in some if p.correct]
    if not prober.is_steady([*correct, *garbage]):
        return prober.unsteady_findings([*correct, *garbage])
    findings = []
    if paid:
        examples = len({id(probe.text.subject) for probe in correct})
        exploits = "1 exploit is" if len(paid) == 1 else f"{len(paid)} exploits are"
        names = listed([f"{name} ({_DESERVES[name]})" for name in paid], 4)
        title = f"{exploits} scored as correct on {examples} of {tried} examples: {names}"
        remedy = (
            "parse one answer and compare it as a whole: what states no answer, several or a wrong one is not correct; "
            "of a question with many right answers, or a tolerance, allow those that are right (`audit_allows`)"
        )
        shown = examples_of(correct, "not correct")
        findings.append(Finding("false-positive", Verdict.FAIL, title, remedy, tuple(paid), shown))
    if thought:
        title = "an answer that stands only in the model's thought is scored as correct"
        remedy = "leave out what stands between <think> and </think> before parsing: the user is not shown it"
        shown = examples_of(thought, "unparsable: nothing follows the thought")
        names = tuple(dict.fromkeys(probe.name for probe in thought))
        findings.append(Finding("thought-counts", Verdict.WARN, title, remedy, names, shown))
    if garbage:
        names = tuple(dict.fromkeys(probe.name for probe in garbage))
        best = max(garbage, key=lambda probe: probe.score.reward).score
        parts = [name for name, value in best.components.items() if value * best.weights[name] > _TINY]
        title = f"texts without an answer earn up to {best.reward:.3g}, by {', '.join(parts)}: {listed(names)}"
        remedy = (
            "pay for form only where a well-formed answer stands in it: this is learnt first, and holds up the rest"
        )
        shown = examples_of(garbage, "what an empty text earns")
        findings.append(Finding("garbage-paid", Verdict.FAIL, title, remedy, names, shown))
    return findings


def _undeserved(prober: Prober, name: str, probes: Sequence[Probe]) -> list[Probe]:
    """Return the probes of an exploit that are correct without being so; none if they are few enough for luck."""
    deserves = _DESERVES[name]
    if deserves in (Deserves.THOUGHT, Deserves.CODE):
        return []
    found = [p for p in probes if p.correct]
    if deserves is Deserves.HEDGE:  # right wherever the right answer stands among the others
        missed = {id(p.text.subject) for p in probes if not p.correct}
        found = [p for p in found if id(p.text.subject) not in missed]
    elif deserves is not Deserves.WRONG:
        found = [p for p in found if not _is_lucky(prober, p)]
    examples, tried = (len({id(p.text.subject) for p in some}) for some in (found, probes))
    return found if examples > LUCKY_SHARE * tried and (examples > 1 or tried <= 2) else []


def _is_lucky(prober: Prober, probe: Probe) -> bool:
    """Return True if a text that knows nothing states what happens to be the right answer."""
    given = prober.env.parser.parse_answer(completion_text(probe.text.completion))
    subject = probe.text.subject
    answers = (answer_of(subject), subject.example.answer)
    return isinstance(given, str) and any(same_answer(given, answer) for answer in answers if answer)
