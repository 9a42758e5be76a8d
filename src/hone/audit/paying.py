"""Whether a reward pays for what deserves nothing, and whether grading it has effects of its own."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from hone.audit.canary import ran
from hone.audit.exploits import EXPLOITS, Deserves, Exploit
from hone.audit.failures import failures, is_steady, listed, shown, unsteady
from hone.audit.kinds import answer_of, same_answer
from hone.audit.probes import Probe, Prober, Subject, Text
from hone.audit.report import Check, Finding, Verdict
from hone.environments.parsers import completion_text
from hone.types import Outcome

LUCKY_SHARE = 0.1
"""What is right by luck now and then counts where it pays in more than this share of the examples."""
_TINY = 1e-9
_WORKED = ("false-positive", "garbage-paid", "side-effect")
"""Findings whose exploits are counted as having worked."""
_BY_NAME = {exploit.name: exploit for exploit in EXPLOITS}


def check_exploits(prober: Prober, hostile: bool, graded: Sequence[Probe] = ()) -> tuple[Check, list[Probe]]:
    """Whether completions that deserve nothing are scored as correct, or paid, or run.

    `hostile` tries also what may take a grader's time or safety: the environment must be isolated then, as a text may
    hang it, and code in it would run in this process. Of `graded`, the probes so far, those of the references say which
    examples to leave out: where the reference is not correct, nothing is known of what is wrong. If none is, only
    effects count. Conversations wait for their tools: without `hostile` they are played with one example.
    """
    reference = [probe for probe in graded if probe.name == "reference"]
    assert prober.env.isolated or not hostile, "hostile texts are graded in processes that can be ended"
    known = [probe.text.subject for probe in reference if probe.correct]
    if reference and all(probe.failed for probe in reference):
        return Check("exploits", "not looked at: the grader fails on each reference"), []
    subjects = known or prober.distinct
    chosen = [exploit for exploit in EXPLOITS if hostile or not exploit.hostile]
    with tempfile.TemporaryDirectory(prefix="hone-") as folder:
        canary = Path(folder)
        texts = [
            Text(subject, exploit.name, script)
            for exploit in chosen
            for subject in (subjects if hostile or exploit.play is None else subjects[:1])
            for script in exploit.apply(subject, prober.subjects, prober.env, canary)
        ]
        probes = prober.grade(texts)
        executed = ran(canary, {probe.name for probe in probes})
    by_name: dict[str, list[Probe]] = defaultdict(list)
    for probe in probes:
        by_name[probe.name].append(probe)
    paid = _paid(prober, by_name)
    findings = [*failures(probes), *_side_effects(executed, by_name)]
    if _always_right(by_name):
        findings.append(_always(by_name))
    elif known or not reference:
        garbage = _garbage(by_name)
        doubtful = [*(probe for some in paid.values() for probe in some), *garbage]
        if is_steady(prober, doubtful):
            findings += [*_false_positives(paid, len(subjects)), *_unsaid(by_name), *_garbage_paid(garbage)]
        else:
            findings += unsteady(prober, doubtful)
    figures = {
        "exploits": len(by_name),
        "texts": len(probes),
        "seconds": round(sum(probe.score.seconds for probe in probes), 3),
        "correct": {name: [len(some), _examples(by_name[name])] for name, some in paid.items()},
        "executed": list(executed),
    }
    worked = {name for finding in findings if finding.name in _WORKED for name in finding.what}
    count = len(by_name) if _always_right(by_name) else len(worked) or "none"
    summary = f"{len(by_name)} ways to be paid for nothing, on {len(subjects)} examples: {count} worked"
    return Check("exploits", summary, tuple(findings), figures), probes


def _paid(prober: Prober, by_name: dict[str, list[Probe]]) -> dict[str, list[Probe]]:
    """The exploits that were scored as correct without being so, by name."""
    found = {}
    for name, probes in by_name.items():
        exploit = _BY_NAME[name]
        if exploit.deserves in (Deserves.UNSAID, Deserves.CODE):
            continue
        some = _hedged(probes) if exploit.deserves is Deserves.HEDGE else [p for p in probes if p.correct]
        if exploit.deserves is not Deserves.HEDGE:
            some = [probe for probe in some if not _lucky(prober, exploit, probe)]
        if some and _counts(_examples(some), _examples(probes)):
            found[name] = some
    return found


def _hedged(probes: Sequence[Probe]) -> list[Probe]:
    """Those in which the right answer was found wherever it stood among the others."""
    by_subject: dict[int, list[Probe]] = defaultdict(list)
    for probe in probes:
        by_subject[id(probe.text.subject)].append(probe)
    return [probe for some in by_subject.values() if all(p.correct for p in some) for probe in some]


def _lucky(prober: Prober, exploit: Exploit, probe: Probe) -> bool:
    """Whether a text that knows nothing states what happens to be the right answer."""
    if exploit.deserves not in (Deserves.LUCK, Deserves.NOTHING):
        return False
    given = prober.env.parser.parse_answer(completion_text(_messages(probe)))
    return isinstance(given, str) and _is_answer(given, probe.text.subject)


def _is_answer(given: str, subject: Subject) -> bool:
    return any(same_answer(given, answer) for answer in (answer_of(subject), subject.example.answer) if answer)


def _messages(probe: Probe) -> list[dict]:
    completion = probe.text.completion
    return [{"role": "assistant", "content": completion}] if isinstance(completion, str) else [*completion]


def _counts(paid: int, tried: int) -> bool:
    """Whether it is more than luck: a question may have several right answers."""
    return paid > LUCKY_SHARE * tried and (paid > 1 or tried <= 2)


def _examples(probes: Sequence[Probe]) -> int:
    return len({id(probe.text.subject) for probe in probes})


def _false_positives(paid: dict[str, list[Probe]], tried: int) -> list[Finding]:
    names = tuple(paid)
    if not names:
        return []
    probes = [probe for name in names for probe in paid[name]]
    examples = _examples(probes)
    count = "1 exploit is" if len(names) == 1 else f"{len(names)} exploits are"
    title = (
        f"{count} scored as correct on {examples} of {tried} examples: "
        f"{listed([f'{name} ({_BY_NAME[name].deserves})' for name in names], 4)}"
    )
    remedy = (
        "parse one answer and compare it as a whole: what states no answer, several or a wrong one is not correct; of "
        "a question with many right answers, or a tolerance, allow those that are right (`audit_allows`)"
    )
    return [Finding("false-positive", Verdict.FAIL, title, remedy, names, shown(probes, "not correct"))]


def _unsaid(by_name: dict[str, list[Probe]]) -> list[Finding]:
    names = [
        name
        for name, probes in by_name.items()
        if _BY_NAME[name].deserves is Deserves.UNSAID and any(probe.correct for probe in probes)
    ]
    if not names:
        return []
    probes = [probe for name in names for probe in by_name[name] if probe.correct]
    title = "an answer that stands only in the model's thought is scored as correct"
    remedy = "leave out what stands between <think> and </think> before parsing: the user is not shown it"
    expected = "unparsable: nothing was said after the thought"
    return [Finding("thought-counts", Verdict.WARN, title, remedy, tuple(names), shown(probes, expected))]


def _garbage(by_name: dict[str, list[Probe]]) -> list[Probe]:
    """Texts without an answer that earn more than the empty one does, of the same example."""
    nothing = {id(p.text.subject): p.score.reward for p in by_name.get("empty", ()) if not p.failed}
    return [
        probe
        for name, probes in by_name.items()
        if _BY_NAME[name].deserves is Deserves.NOTHING
        for probe in probes
        if not probe.failed and not probe.correct
        if probe.score.reward > max(0.0, nothing.get(id(probe.text.subject), 0.0)) + _TINY
    ]


def _garbage_paid(paid: Sequence[Probe]) -> list[Finding]:
    if not paid:
        return []
    names = tuple(dict.fromkeys(probe.name for probe in paid))
    best = max(paid, key=lambda probe: probe.score.reward)
    parts = [name for name, value in best.score.components.items() if value * best.score.weights[name] > _TINY]
    title = f"texts without an answer earn up to {best.score.reward:.3g}, by {', '.join(parts)}: {listed(names)}"
    remedy = "pay for form only where a well-formed answer stands in it: this is learnt first, and holds up the rest"
    return [Finding("garbage-paid", Verdict.FAIL, title, remedy, names, shown(paid, "what an empty text earns"))]


def _side_effects(executed: Sequence[str], by_name: dict[str, list[Probe]]) -> list[Finding]:
    if not executed:
        return []
    probes = [probe for name in executed for probe in by_name[name]]
    title = f"the grader ran what a model wrote ({listed(executed)}): it made a file"
    remedy = "never give a model's text to eval, exec, a shell or sympy; parse it, or run it in hone's sandbox"
    return [Finding("side-effect", Verdict.FAIL, title, remedy, tuple(executed), shown(probes, "no effect at all"))]


def _always_right(by_name: dict[str, list[Probe]]) -> bool:
    """Whether all that deserves nothing is correct: there is no wrong answer."""
    kinds = (Deserves.NOTHING, Deserves.WRONG, Deserves.LUCK)
    tried = [p for name, probes in by_name.items() if _BY_NAME[name].deserves in kinds for p in probes if not p.failed]
    return len(tried) > 2 and all(probe.score.outcome is Outcome.CORRECT for probe in tried)


def _always(by_name: dict[str, list[Probe]]) -> Finding:
    probes = [probe for probes in by_name.values() for probe in probes if probe.correct]
    title = "every text is scored as correct, the empty one too"
    remedy = "compare the answer with the right one: a reward that is always the same teaches nothing"
    return Finding("always-right", Verdict.FAIL, title, remedy, (), shown(probes, "not correct"))
