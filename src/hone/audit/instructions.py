r"""Checks that the prompts ask for what the parser reads, and that the references fit into a completion.

Forms of an answer that a prompt may ask for: tags, `\boxed{}`, `ANSWER:`, `####`, JSON, a fence, the last line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hone.audit.answers import answer_of, answer_span
from hone.audit.conversations import REASONING
from hone.audit.probes import Probe, Prober, Subject, Text
from hone.audit.report import Check, Finding, Verdict
from hone.environments.parsers import message_text

SUBJECTS = 4
NEARLY = 0.8
"""The share of max_tokens above which a length is worth a warning."""
_AUXILIARY = re.compile(
    "think|thinking|thoughts?|reason|reasoning|scratchpad|reflection|analysis|plan|planning|work|steps?|explanation|"
    "working_out|draft|tools?|tool_calls?|tool_response|function|call|code|output|result|query|search|information|"
    "context|documents?|data|input|question|problem|passage|text|image|examples?|instructions?|system|user|name|"
    "a|b|body|br|div|em|hr|html|i|li|ol|p|pre|span|strong|sub|sup|ul"
)
"""Tags that do not hold the answer: of thoughts, tools, data, HTML."""
_PAIR = re.compile(r"<([A-Za-z_][\w-]{0,40})>(.*?)</\1>", re.DOTALL)
_CALL_KEYS = ("name", "type", "role", "function", "arguments")
"""Keys of JSON that belong to a tool and its calls."""
# What names a form, whose group is {0} in the rest; the form's name; the ways to write it around the answer {1}.
_FORMS = (
    (r"<([A-Za-z_][\w-]{0,40})>", "<{0}>", ("<{0}>{1}</{0}>", "<{0}>\n{1}\n</{0}>")),
    (r"\\(boxed)", r"\boxed{{}}", (r"\boxed{{{1}}}", r"$\boxed{{{1}}}$")),
    (r"\b((?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:)(?=\s*\S)", "{0}", ("{0} {1}", "{0}\n{1}")),
    (r"(####)", "{0}", ("{0} {1}",)),
    (
        r"(?:\{\s*\"|\bJSON\b[^.\n]{0,80}?\b(?:key|field)s?\s+[\"'`])(\w+)[\"'`]",
        'JSON with "{0}"',
        ('{{"{0}": "{1}"}}', '{{"{0}": {1}}}', '```json\n{{"{0}": "{1}"}}\n```'),
    ),
    (r"(```|\bcode (?:block|fence)\b)", "a code fence", ("```\n{1}\n```", "```python\n{1}\n```")),
)
_LAST_LINE = re.compile(r"\b(?:last|final) line\b", re.IGNORECASE)


@dataclass(frozen=True)
class AskedForm:
    """A form of an answer: its name ("<answer>"), what a prompt says of it (`snippet`), and templates of the answer."""

    name: str
    snippet: str
    ways: tuple[str, ...]
    what: str = ""

    def texts(self, answer: str) -> list[str]:
        """Return the answer in this form, in each way to write it."""
        given = json.dumps(answer, ensure_ascii=False)[1:-1] if self.name.startswith("JSON") else answer
        return [way.format(self.what, given) for way in self.ways]


def check_instructions(
    prober: Prober, max_tokens: int | None = None, count_tokens: Callable[[str], int] | None = None
) -> Check:
    """Grade right answers in the forms that the prompts ask for, and compare lengths with `max_tokens`."""
    prompts = [
        "\n".join(message_text(m) for m in s.example.prompt if m["role"] != "assistant") for s in prober.subjects
    ]
    common = constant_part(prompts)
    forms = forms_in(common, data_tags(prompts))
    subjects = [subject for subject in prober.subjects[:SUBJECTS] if answer_span(subject)]
    probes = prober.grade([Text(s, "reference", s.reference) for s in subjects if s.reference is not None])
    subjects = [probe.text.subject for probe in probes if probe.correct]
    findings = list(_form_findings(prober, forms, common, subjects)) if subjects else []
    unread = {what for finding in findings for what in finding.what}
    longest = max(_reference_lengths(prober.subjects, count_tokens), default=None) if count_tokens else None
    if max_tokens is not None and longest is not None and longest > NEARLY * max_tokens:
        title = f"the longest reference has {longest} tokens, and max_tokens is {max_tokens}"
        verdict = Verdict.FAIL if longest > max_tokens else Verdict.NOTE
        findings.append(Finding("length", verdict, title, f"raise max_tokens above {longest}", ("reference",)))
    figures = {
        "instruction": common,
        "forms": [{"form": form.name, "snippet": form.snippet, "read": form.name not in unread} for form in forms],
        "max_tokens": max_tokens,
        "longest_reference": longest,
    }
    names = ", ".join(form.name for form in forms) or "no form"
    untried = "" if subjects else " (not tried: no right answer is known word for word)"
    lengths = f"the longest reference has {longest} of {max_tokens} tokens"
    if max_tokens is None or longest is None:
        missing = "max_tokens" if max_tokens is None else "the tokenizer"
        lengths = f"lengths were not compared, for {missing} is not known"
    return Check("instructions", f"the prompts ask for {names}{untried}; {lengths}", tuple(findings), figures)


def forms_in(text: str, ignored: frozenset[str] = frozenset()) -> list[AskedForm]:
    """Return the forms of an answer that a text names, in the order of their kinds."""
    found: dict[str, AskedForm] = {}
    for pattern, name, ways in _FORMS:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            what = " ".join(match[1].split())
            is_tag = name.startswith("<")
            if (is_tag and (_AUXILIARY.fullmatch(what.lower()) or what in ignored)) or what in _CALL_KEYS:
                continue
            form = AskedForm(name.format(what), _snippet(text, match.start()), ways, what)
            found.setdefault(form.name, form)
    if (match := _LAST_LINE.search(text)) and not found:  # else it says where the form stands
        found["the last line"] = AskedForm("the last line", _snippet(text, match.start()), ("{1}",))
    return list(found.values())


def constant_part(prompts: Sequence[str]) -> str:
    """Return what all prompts share: how they begin, the lines that are in each, and how they end, with … between."""
    if len(set(prompts)) <= 1:
        return prompts[0] if prompts else ""
    start = re.sub(r"\S+\Z", "", _common_start(prompts))  # whole words
    end = re.sub(r"\A\S+", "", _common_start([prompt[::-1] for prompt in prompts])[::-1])
    shared = set(prompts[0].splitlines()).intersection(*(prompt.splitlines() for prompt in prompts[1:]))
    lines = [line for line in prompts[0].splitlines() if line in shared and line not in start and line not in end]
    return "\n…\n".join(part for part in (start, "\n".join(lines), end) if part.strip())


def _common_start(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    same = next((i for i, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), None)
    return low if same is None else low[:same]


def data_tags(prompts: Sequence[str]) -> frozenset[str]:
    """Return the tags that hold data: what stands between them differs from prompt to prompt."""
    pairs = [_PAIR.findall(prompt) for prompt in prompts]
    tags = {tag for found in pairs for tag, _ in found}
    inner = {tag: {tuple(text for t, text in found if t == tag) for found in pairs} - {()} for tag in tags}
    return frozenset(tag for tag, texts in inner.items() if len(texts) > 1)


def _snippet(text: str, start: int, around: int = 60) -> str:
    """Return the words around a place, in one line."""
    left, right = max(0, start - around), start + around
    before, after = text[left:start], text[start:right]
    if left > 0:
        before = "… " + re.sub(r"\A\S*\s+", "", before)
    if right < len(text):
        after = re.sub(r"\s+\S*\Z", "", after) + " …"
    return " ".join((before + after).split())


def _form_findings(
    prober: Prober, forms: Sequence[AskedForm], common: str, subjects: Sequence[Subject]
) -> Iterator[Finding]:
    """Yield the forms that the prompts ask for and no way of writing is read, or one that is needed and not named."""
    if not forms:
        yield from _nothing_asked(prober, common, subjects)
        return
    lost: dict[str, Probe] = {}
    for form in forms:
        before = form.ways[0].partition("{1}")[0].format(form.what).strip()
        in_references = before and any(before in subject.text for subject in subjects)
        if not in_references and (probe := _lost(prober, subjects, form.name, form.texts)) is not None:
            lost[form.name] = probe
    read = [form for form in forms if form.name not in lost]
    if not read and len(forms) > 1 and _lost(prober, subjects, "all forms", lambda a: _nested(forms, a)) is None:
        return
    # What holds no answer may stand beside what does.
    unread = [form for form in forms if form.name in lost and (not read or _states_answer(form))]
    if not unread:
        return
    words = "; ".join(f'{form.name} ("{form.snippet}")' for form in unread)
    title = f"the prompt asks for an answer in a form that the parser does not read: {words}"
    if read:
        title = f"the prompt names a form that the parser does not read: {words}; it reads {read[0].name}"
    remedy = f"ask for what the parser reads ({prober.env.parser.expects}), or let it read what is asked for"
    expected = "full marks: it is right, in the form that the prompt asks for"
    shown = tuple(lost[form.name].evidence(expected) for form in unread[:3])
    verdict = Verdict.WARN if read else Verdict.FAIL
    yield Finding("instructions", verdict, title, remedy, tuple(form.name for form in unread), shown)


def _lost(prober: Prober, subjects: Sequence[Subject], name: str, texts: Callable[[str], list[str]]) -> Probe | None:
    """Return a right answer that was lost, if no way to write the form is read; None if one is."""
    probes = prober.grade(
        [
            Text(subject, name, subject.render(given))
            for subject in subjects
            for text in texts(answer_of(subject))
            for given in (text, f"{REASONING.strip()}\n{text}")
        ]
    )
    right = {probe.example_id for probe in probes if probe.correct}
    if 2 * len(right) >= len({subject.example.id for subject in subjects}):
        return None
    return next((probe for probe in probes if not probe.correct), None)


def _nested(forms: Sequence[AskedForm], answer: str) -> list[str]:
    """Return the answer in all forms inside each other, either way around."""
    inner = outer = answer
    for form, last in zip(forms, reversed(forms), strict=True):
        inner, outer = form.texts(inner)[0], last.texts(outer)[0]
    return [inner, outer]


def _states_answer(form: AskedForm) -> bool:
    """Return True if a form must hold the answer, beside another that does. A fence may stand around an example."""
    if form.name == "a code fence":
        return False
    return not form.name.startswith("<") or bool(re.search("answer|final|solution|result|response", form.name, re.I))


def _nothing_asked(prober: Prober, common: str, subjects: Sequence[Subject]) -> Iterator[Finding]:
    """Yield a form that the parser needs, and that no prompt names."""
    needed = [form for form in forms_in(f"{subjects[0].text}\n.") if form.name != "the last line"]
    needed = [form for form in needed if form.name.strip("<>{}\\: ").split()[-1].lower() not in common.lower()]
    lost = _lost(prober, subjects, "the bare answer", lambda a: [a, f"The answer is {a}."]) if needed else None
    if lost is None:
        return
    verdict = Verdict.NOTE if len(common.replace("…", "").split()) < 3 else Verdict.WARN
    title = f"nothing in the prompt tells the model to write {needed[0].name}, which the parser needs"
    remedy = "say so in the system prompt or after the question, or teach it by SFT first"
    shown = lost.evidence("full marks: it is right, and the prompt asks for no form")
    yield Finding("instructions", verdict, title, remedy, (needed[0].name,), (shown,))


def _reference_lengths(subjects: Sequence[Subject], count_tokens: Callable[[str], int]) -> Iterator[int]:
    """Yield the tokens of the references, of several turns of each message."""
    for subject in subjects:
        reference = subject.reference or []
        turns = [{"role": "assistant", "content": reference}] if isinstance(reference, str) else reference
        yield from (count_tokens(str(m.get("content") or "")) for m in turns if m["role"] == "assistant")
