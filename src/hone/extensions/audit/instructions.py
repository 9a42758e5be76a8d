r"""Checks that prompts ask for a form that the parser reads, and that references fit into a completion.

A prompt may ask for these forms of an answer: tags, `\boxed{}`, `ANSWER:`, `####`, JSON, a code fence.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hone.environments.parsers import message_text
from hone.extensions.audit.answers import answer_of, answer_span
from hone.extensions.audit.conversations import REASONING
from hone.extensions.audit.probes import Probe, Prober, Subject, Text, messages_of
from hone.extensions.audit.report import Check, Finding, Verdict

SUBJECTS = 4
_AUXILIARY = re.compile(
    "think|thinking|thoughts?|reason|reasoning|scratchpad|reflection|analysis|plan|planning|work|steps?|explanation|"
    "working_out|draft|tools?|tool_calls?|tool_response|function|call|code|output|result|query|search|information|"
    "context|documents?|data|input|question|problem|passage|text|image|examples?|instructions?|system|user|name|"
    "a|b|body|br|div|em|hr|html|i|li|ol|p|pre|span|strong|sub|sup|ul"
)
"""Tags of thoughts, tools, data and HTML, which hold no answer."""
_PAIR = re.compile(r"<([A-Za-z_][\w-]{0,40})>(.*?)</\1>", re.DOTALL)
_CALL_KEYS = ("name", "type", "role", "function", "arguments")
# A pattern that names a form, with {0} for its group; the form's name; ways to write it around the answer {1}.
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


@dataclass(frozen=True)
class AskedForm:
    """A form of an answer: its `name`, the `snippet` of the prompt that asks for it, templates for the `ways` to write
    it, and `what`, its tag or key.
    """

    name: str
    snippet: str
    ways: tuple[str, ...]
    what: str

    def texts(self, answer: str) -> list[str]:
        given = json.dumps(answer, ensure_ascii=False)[1:-1] if self.name.startswith("JSON") else answer
        return [way.format(self.what, given) for way in self.ways]

    @property
    def states_answer(self) -> bool:
        """True if the form must hold the answer even if another form does. A code fence may only show an example."""
        if self.name.startswith("<"):
            return re.search("answer|final|solution|result|response", self.name, re.IGNORECASE) is not None
        return self.name != "a code fence"


def check_instructions(
    prober: Prober, max_tokens: int | None = None, count_tokens: Callable[[str], int] | None = None
) -> Check:
    """Grade right answers in the forms that the prompts ask for, and compare references' lengths with `max_tokens`."""
    prompts = [
        "\n".join(message_text(m) for m in s.example.prompt if m["role"] != "assistant") for s in prober.subjects
    ]
    forms = asked_forms(prompts)
    known = [subject for subject in prober.subjects[:SUBJECTS] if answer_span(subject)]
    probes = prober.grade([Text(s, "reference", s.reference) for s in known if s.reference is not None])
    known = [probe.text.subject for probe in probes if probe.correct]
    findings = _unread(prober, forms, known) if known and forms else []
    unread = {name for finding in findings for name in finding.what}
    figures = [{"form": form.name, "snippet": form.snippet, "read": form.name not in unread} for form in forms]
    lengths = "lengths were not compared, for the tokenizer or max_tokens is not known"
    replies = [m for s in prober.subjects for m in messages_of(s.reference or "") if m["role"] == "assistant"]
    if max_tokens is not None and count_tokens is not None and replies:
        longest = max(count_tokens(str(message.get("content") or "")) for message in replies)
        lengths = f"the longest reference has {longest} of {max_tokens} tokens"
        if longest > max_tokens:
            title = f"the longest reference has {longest} tokens, and max_tokens is {max_tokens}"
            remedy = f"raise max_tokens above {longest}"
            findings.append(Finding("length", Verdict.FAIL, title, remedy, ("reference",)))
    names = ", ".join(form.name for form in forms) or "no form"
    untried = "" if known else " (not tried: no right answer is known word for word)"
    summary = f"the prompts ask for {names}{untried}; {lengths}"
    return Check("instructions", summary, tuple(findings), {"forms": figures})


def asked_forms(prompts: Sequence[str]) -> list[AskedForm]:
    """Return the forms that every prompt names, except tags with several contents over the prompts: these hold data."""
    contents: dict[str, set[str]] = defaultdict(set)
    for prompt in prompts:
        for tag, inner in _PAIR.findall(prompt):
            contents[f"<{tag}>"].add(inner)
    named = [forms_in(prompt) for prompt in prompts]
    shared = set.intersection(*({form.name for form in forms} for forms in named)) if named else set()
    return [form for form in (named or [[]])[0] if form.name in shared and len(contents[form.name]) <= 1]


def forms_in(text: str) -> list[AskedForm]:
    found: dict[str, AskedForm] = {}
    for pattern, name, ways in _FORMS:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            what, start = " ".join(match[1].split()), match.start()
            if not (name.startswith("<") and _AUXILIARY.fullmatch(what.lower())) and what not in _CALL_KEYS:
                snippet = " ".join(text[max(0, start - 60) : start + 60].split())
                form = AskedForm(name.format(what), snippet, ways, what)
                found.setdefault(form.name, form)
    return list(found.values())


def _unread(prober: Prober, forms: Sequence[AskedForm], subjects: Sequence[Subject]) -> list[Finding]:
    lost: dict[str, Probe] = {}
    for form in forms:
        before = form.ways[0].partition("{1}")[0].format(form.what).strip()
        in_references = before and any(before in subject.text for subject in subjects)
        if not in_references and (probe := _lost(prober, subjects, form.name, form.texts)) is not None:
            lost[form.name] = probe
    read = [form for form in forms if form.name not in lost]
    if not read and len(forms) > 1 and _lost(prober, subjects, "all forms", lambda a: _nested(forms, a)) is None:
        return []
    # A form that holds no answer may stand beside one that does.
    unread = [form for form in forms if form.name in lost and (not read or form.states_answer)]
    if not unread:
        return []
    words = "; ".join(f'{form.name} ("{form.snippet}")' for form in unread)
    title = f"the prompt asks for an answer in a form that the parser does not read: {words}"
    if read:
        title = f"the prompt names a form that the parser does not read: {words}; it reads {read[0].name}"
    remedy = f"ask for what the parser reads ({prober.env.parser.expects}), or let it read what is asked for"
    expected = "full marks: it is right, in the form that the prompt asks for"
    shown = tuple(lost[form.name].evidence(expected) for form in unread[:3])
    verdict = Verdict.WARN if read else Verdict.FAIL
    return [Finding("instructions", verdict, title, remedy, tuple(form.name for form in unread), shown)]


def _lost(prober: Prober, subjects: Sequence[Subject], name: str, texts: Callable[[str], list[str]]) -> Probe | None:
    """Return a right answer that is not read, if fewer than half of the examples are read in this form; else None."""
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
    inner = outer = answer
    for form, last in zip(forms, reversed(forms), strict=True):
        inner, outer = form.texts(inner)[0], last.texts(outer)[0]
    return [inner, outer]
