"""Whether the prompts ask for what the parser reads, and for no more than a completion has room for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hone.audit.forms import Form, asked_for, forms_in, snippet
from hone.audit.kinds import answer_of
from hone.audit.probes import Probe, Prober, Subject, Text
from hone.audit.report import Check, Finding, Verdict
from hone.audit.statement import answer_span
from hone.audit.trajectories import REASONING

SUBJECTS = 4
NEARLY = 0.8
"""The share of max_tokens above which a length is worth a warning."""
_TOKENS = {"word": 1.3, "token": 1.0, "sentence": 25.0, "paragraph": 100.0, "line": 15.0, "character": 0.3}
"""Tokens per unit, of English."""
_NUMBERS = {
    word: number
    for number, words in {
        1: "one", 2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine", 10: "ten",
        12: "twelve", 15: "fifteen", 20: "twenty", 30: "thirty", 40: "forty", 50: "fifty", 100: "hundred|a hundred",
        200: "two hundred", 300: "three hundred", 500: "five hundred", 1000: "thousand|a thousand|one thousand",
        2000: "two thousand", 5000: "five thousand",
    }.items()
    for word in words.split("|")
}  # fmt: skip
_COUNT = r"\d[\d,]*k?|" + "|".join(sorted(_NUMBERS, key=len, reverse=True))
_LENGTH = re.compile(
    r"(?P<how>at least|no(?:t)? (?:less|fewer) than|(?:a )?minimum of|more than|over|about|around|approximately|"
    r"roughly|exactly|at most|no(?:t)? (?:more|longer) than|up to|within|under|(?:fewer|less) than|"
    r"(?:a )?maximum of|in|with|an?)?\s*"
    rf"\b(?P<low>{_COUNT})(?:\s*(?:-|–|to|or)\s*(?P<high>{_COUNT}))?[\s-]+(?:\w+ing |full |complete )?"
    r"(?P<unit>word|token|sentence|paragraph|line|character)s?\b",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"at most|more than|longer than|up to|within|under|fewer|less|maximum", re.IGNORECASE)
_LEAST = re.compile(r"at least|no(t)? (less|fewer)|minimum|^(more than|over)", re.IGNORECASE)
_VERB = re.compile(r"\b(write|use|answer|respond|reply|think|explain|reason|give|produce|describe|solve)\w*\b", re.I)


def check_instructions(
    prober: Prober, max_tokens: int | None = None, count_tokens: Callable[[str], int] | None = None
) -> Check:
    """Grades right answers in the forms that the prompts ask for, and compares lengths with `max_tokens`.

    `count_tokens` counts the tokens of a text as the model has them.
    """
    forms, common = asked_for(prober.subjects)
    subjects = [subject for subject in prober.subjects[:SUBJECTS] if answer_span(subject)]
    probes = prober.grade([Text(s, "reference", s.reference) for s in subjects if s.reference is not None])
    subjects = [probe.text.subject for probe in probes if probe.correct]
    findings: list[Finding] = []
    unread: list[str] = []
    if subjects:
        found, unread = _forms(prober, forms, common, subjects)
        findings += found
    lengths = list(_asked_lengths(common, count_tokens))
    if max_tokens is not None:
        findings += _too_long(lengths, max_tokens)
    longest = _reference_lengths(prober.subjects, count_tokens)
    if max_tokens is not None and longest:
        findings += _references_too_long(longest, max_tokens)
    figures: dict[str, Any] = {
        "instruction": common,
        "forms": [{"form": form.name, "snippet": form.snippet, "read": form.name not in unread} for form in forms],
        "lengths": [{"snippet": words, "tokens": tokens, "kind": kind} for words, tokens, kind in lengths],
        "max_tokens": max_tokens,
        "longest_reference": max(longest, default=None),
    }
    return Check("instructions", _summary(forms, subjects, max_tokens, longest), tuple(findings), figures)


def _forms(
    prober: Prober, forms: Sequence[Form], common: str, subjects: Sequence[Subject]
) -> tuple[list[Finding], list[str]]:
    """What is found of the forms that the prompts ask for, and the names of those that are not read."""
    if not forms:
        return list(_nothing_asked(prober, common, subjects)), []
    read: list[Form] = []
    unread: list[tuple[Form, Probe]] = []
    for form in forms:
        written = _in_references(form, subjects)
        lost = None if written else _lost(prober, subjects, form.name, form.texts)
        if lost is None:
            read.append(form)
        else:
            unread.append((form, lost))
    if not unread:
        return [], []
    names = [form.name for form, _ in unread]
    if not read and (together := _together(forms)) and _lost(prober, subjects, "all forms", together) is None:
        return [], []
    if read:  # what holds no answer may stand beside what does
        unread = [(form, lost) for form, lost in unread if _states_answer(form)]
        if not unread:
            return [], names
    words = "; ".join(f'{form.name} ("{form.snippet}")' for form, _ in unread)
    shown = tuple(lost.shown("full marks: it is right, in the form that the prompt asks for") for _, lost in unread[:3])
    title = f"the prompt asks for an answer in a form that the parser does not read: {words}"
    if read:
        title = f"the prompt names a form that the parser does not read: {words}; it reads {read[0].name}"
    remedy = f"ask for what the parser reads ({prober.env.parser.expects}), or let it read what is asked for"
    verdict = Verdict.WARN if read else Verdict.FAIL
    return [Finding("instructions", verdict, title, remedy, tuple(form.name for form, _ in unread), shown)], names


def _lost(prober: Prober, subjects: Sequence[Subject], name: str, texts: Callable[[str], list[str]]) -> Probe | None:
    """A probe of a right answer that was lost, if no way to write the form is read; None if one is."""
    probes = prober.grade(
        [
            Text(subject, name, subject.saying(said))
            for subject in subjects
            for text in texts(answer_of(subject))
            for said in (text, f"{REASONING.strip()}\n{text}")
        ]
    )
    right = {probe.text.subject.example.id for probe in probes if probe.correct}
    if 2 * len(right) >= len({subject.example.id for subject in subjects}):
        return None
    return next((probe for probe in probes if not probe.correct), None)


def _together(forms: Sequence[Form]) -> Callable[[str], list[str]] | None:
    """All forms inside each other, either way around; None if there is but one."""
    if len(forms) < 2:
        return None

    def texts(answer: str) -> list[str]:
        nested = []
        for order in (forms, list(reversed(forms))):
            text = answer
            for form in order:
                text = form.texts(text)[0]
            nested.append(text)
        return nested

    return texts


def _states_answer(form: Form) -> bool:
    """Whether a form must hold the answer, beside another that does. A fence may stand around an example of it."""
    if form.name == "a code fence":
        return False
    return not form.name.startswith("<") or bool(re.search("answer|final|solution|result|response", form.name, re.I))


def _in_references(form: Form, subjects: Sequence[Subject]) -> bool:
    """Whether references, which are correct, have this form."""
    before = form.ways[0][0].strip()
    return any(before and before in subject.text for subject in subjects)


def _nothing_asked(prober: Prober, common: str, subjects: Sequence[Subject]) -> Iterator[Finding]:
    """A form that the parser needs, and that no prompt names."""
    needed = [form for form in forms_in(f"{subjects[0].text}\n.") if form.name != "the last line"]
    needed = [form for form in needed if form.name.strip("<>{}\\: ").split()[-1].lower() not in common.lower()]
    if not needed:
        return
    lost = _lost(prober, subjects, "the bare answer", lambda answer: [answer, f"The answer is {answer}."])
    if lost is None:
        return
    taught = len(common.replace("…", "").split()) < 3
    yield Finding(
        "instructions",
        Verdict.NOTE if taught else Verdict.WARN,
        f"nothing in the prompt tells the model to write {needed[0].name}, which the parser needs",
        "say so in the system prompt or after the question, or teach it by SFT first",
        (needed[0].name,),
        (lost.shown("full marks: it is right, and the prompt asks for no form"),),
    )


def _asked_lengths(text: str, count_tokens: Callable[[str], int] | None) -> Iterator[tuple[str, int, str]]:
    """Lengths that a prompt asks for: the words, tokens, and whether it is the `least` or the `most`."""
    per_word = _TOKENS["word"]
    if count_tokens is not None:
        per_word = count_tokens(REASONING * 10) / len((REASONING * 10).split())
    for match in _LENGTH.finditer(text):
        how = (match["how"] or "").lower()
        if how in ("", "in", "with", "a", "an") and not _VERB.search(text[max(0, match.start() - 80) : match.start()]):
            continue
        unit = match["unit"].lower()
        scale = _TOKENS[unit] * (1.0 if unit in ("token", "character") else per_word / _TOKENS["word"])
        most = bool(_LIMIT.search(how)) and not _LEAST.search(how)
        count = _number(match["high"] if most and match["high"] else match["low"])
        yield snippet(text, match.start()), round(count * scale), "most" if most else "least"


def _number(words: str) -> int:
    words = words.lower()
    if words in _NUMBERS:
        return _NUMBERS[words]
    number = int(words.rstrip("k").replace(",", ""))
    return number * 1000 if words.endswith("k") else number


def _too_long(lengths: Sequence[tuple[str, int, str]], max_tokens: int) -> Iterator[Finding]:
    """Lengths that are asked for and do not fit."""
    for words, tokens, kind in lengths:
        if tokens <= NEARLY * max_tokens:
            continue
        remedy = f"raise max_tokens above {tokens}, or ask for less"
        if kind == "most":
            if tokens > max_tokens:
                title = f'the prompt allows about {tokens} tokens ("{words}"), but max_tokens is {max_tokens}'
                yield Finding("length", Verdict.WARN, title, remedy, ("prompt",))
        else:
            fails = tokens > max_tokens
            title = f'the prompt asks for about {tokens} tokens ("{words}"), but max_tokens is {max_tokens}'
            yield Finding("length", Verdict.FAIL if fails else Verdict.WARN, title, remedy, ("prompt",))


def _reference_lengths(subjects: Sequence[Subject], count_tokens: Callable[[str], int] | None) -> list[int]:
    """Tokens of the references, of several turns of the longest message; empty without a tokenizer."""
    if count_tokens is None:
        return []
    lengths = []
    for subject in subjects:
        if isinstance(subject.reference, str):
            lengths.append(count_tokens(subject.reference))
        elif subject.reference is not None:
            said = [str(m.get("content") or "") for m in subject.reference if m.get("role") == "assistant"]
            lengths.append(max(map(count_tokens, said)))
    return lengths


def _references_too_long(lengths: Sequence[int], max_tokens: int) -> Iterator[Finding]:
    over = sum(length > max_tokens for length in lengths)
    longest = max(lengths)
    remedy = f"raise max_tokens above {longest}"
    if over:
        title = f"{over} of {len(lengths)} references are longer than max_tokens = {max_tokens}: up to {longest} tokens"
        yield Finding("length", Verdict.FAIL, title, remedy, ("reference",))
    elif longest > NEARLY * max_tokens:
        title = f"the longest of {len(lengths)} references has {longest} tokens, close to max_tokens = {max_tokens}"
        yield Finding("length", Verdict.NOTE, title, remedy, ("reference",))


def _summary(forms: Sequence[Form], subjects: Sequence[Subject], max_tokens: int | None, longest: Sequence[int]) -> str:
    asked = f"the prompts ask for {', '.join(form.name for form in forms)}" if forms else "the prompts ask for no form"
    if not subjects:
        asked += " (not tried: no right answer is known word for word)"
    if max_tokens is None:
        return f"{asked}; lengths were not compared, for max_tokens is not known"
    if not longest:
        return f"{asked}; references were not measured, for no tokenizer is known"
    return f"{asked}; the longest reference has {max(longest)} of {max_tokens} tokens"
