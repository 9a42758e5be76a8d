r"""A completion taken apart where its answer stands: `head`, the statement `opening` + `answer` + `closing`, `tail`.

Of "12*3 = 36.\n<answer>36</answer>\n": "12*3 = 36.\n", "<answer>", "36", "</answer>" and "\n".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from hone.audit.probes import Subject

Span = tuple[int, int]


class Form(StrEnum):
    """What marks the answer of a completion as such."""

    TAG = "tag"
    BOXED = "boxed"
    LINE = "line"
    """The line it stands in: `ANSWER: 42`, `The answer is 42.`"""
    CODE = "code"
    """JSON, or code, in which an answer can be written in one way only."""
    BARE = "bare"
    """Nothing: the completion is the answer."""


_OPENING_TAG = re.compile(r"<(\w+)>\s*\Z")
_BOX = re.compile(r"\\boxed\s*\{\s*\Z")
_KEY = re.compile(r"""["']\s*:\s*["']?\Z|=\s*["']\Z|["'\[]\Z""")
_FORMS = (re.compile(r"<(\w+)>\s*([^<>]*?)\s*</\1>"), re.compile(r"\\boxed\{([^{}]*)\}"), re.compile(r":[ \t]*(\S.*)"))
_FENCE = re.compile(r"^```[^\n`]*\n(.*?)\n?^```[ \t]*$", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```[^\n`]*\n\s*\Z", re.MULTILINE)
_THOUGHT = re.compile(r"</(think|thinking|reasoning|thought|scratchpad)>\s*")
_CLOSED = re.compile(r"<(think|thinking|reasoning|thought|scratchpad)>.*?</\1>\s*", re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """The parts of a completion; together they are its text. Without a known answer all of it is `opening`."""

    head: str
    opening: str
    answer: str
    closing: str
    tail: str
    form: Form

    @property
    def text(self) -> str:
        return self.head + self.said + self.tail

    @property
    def said(self) -> str:
        """The answer with what marks it as such."""
        return self.opening + self.answer + self.closing

    @property
    def thought(self) -> str:
        """What the head begins with that the reader is not shown: blocks such as `<think>…</think>`."""
        ends = [match.end() for match in _THOUGHT.finditer(self.head)]
        return self.head[: ends[-1]] if ends else ""

    @property
    def frame(self) -> str:
        """The thought of the head, without what was thought: what an answer alone may have to follow."""
        blocks = _CLOSED.findall(self.head)
        return "".join(f"<{tag}>\nI have thought about it.\n</{tag}>\n" for tag in blocks)

    def stating(self, answer: str) -> str:
        """Another answer, marked as such, with nothing beside it."""
        return self.frame + self.opening + answer + self.closing

    def answering(self, answer: str) -> str:
        """The completion with the answer written otherwise."""
        return replace(self, answer=answer).text

    def beginning(self, text: str) -> str:
        """The completion with `text` before what is said, behind what is thought."""
        return self.thought + text + self.text[len(self.thought) :]

    def ahead(self, text: str) -> str:
        """The completion with `text` right before the statement."""
        return self.head + text + self.said + self.tail

    def wrapped(self, left: str, right: str) -> str:
        """The completion with something around the statement."""
        return self.head + left + self.said + right + self.tail


def statement_of(subject: Subject) -> Statement:
    """The reference of a subject, taken apart."""
    text, span = subject.text, answer_span(subject)
    if span is None:
        return Statement("", text, "", "", "", Form.BARE)
    start, end = span
    opened, closed, form = _marked(text, start, end)
    return Statement(text[:opened], text[opened:start], text[start:end], text[end:closed], text[closed:], form)


def answer_span(subject: Subject) -> Span | None:
    """Where the answer stands in the reference: as the task's parser finds it or, of one that takes the whole text as
    the answer, as the data has it, or where completions of this form have it. None if it stands nowhere. Of one that
    stands in a fenced block, the answer is all of that block.
    """
    text = subject.text
    if not text.strip():
        return None
    if subject.answer and subject.answer != text.strip():
        start = text.rfind(subject.answer)
        return start, start + len(subject.answer)
    span = _stated(subject, text)
    blocks = list(_FENCE.finditer(text))
    if span is None or not blocks:
        return span
    within = [
        block for block in blocks if span[0] <= block.start() < span[1] or block.start(1) <= span[0] < block.end()
    ]
    return within[-1].span(1) if within else span


def _stated(subject: Subject, text: str) -> Span | None:
    """Where the answer of the data stands last, or else what completions mark as an answer, or all of the text."""
    gold = subject.example.answer.rpartition("####")[2].strip()
    if gold:
        found = list(re.finditer(rf"(?<![\w.]){re.escape(gold)}(?!\w|[.,]\d)", text))
        if found:
            return found[-1].span()
    for form in _FORMS:
        found = [match for match in form.finditer(text) if match[match.lastindex or 0].strip()]
        if found:
            return found[-1].span(found[-1].lastindex or 0)
    start = len(text) - len(text.lstrip())
    return (start, len(text.rstrip())) if subject.answer else None


def _marked(text: str, start: int, end: int) -> tuple[int, int, Form]:
    """From where to where the statement goes whose answer is `text[start:end]`."""
    before, after = text[:start], text[end:]
    if not before.strip() and not after.strip():
        return 0, len(text), Form.BARE
    tag = _OPENING_TAG.search(before)
    if tag and (closing := re.match(rf"\s*</{tag[1]}>", after)):
        return tag.start(), end + closing.end(), Form.TAG
    if (box := _BOX.search(before)) and (closing := re.match(r"\s*\}", after)):
        return box.start(), end + closing.end(), Form.BOXED
    if (fence := _FENCED.search(before)) and (closing := re.match(r"\s*```", after)):
        return fence.start(), end + closing.end(), Form.CODE
    if _is_json(text):
        return 0, len(text), Form.CODE
    opened = before.rfind("\n") + 1
    stop = after.find("\n")
    closed = len(text) if stop < 0 else end + stop
    # An empty marker line above belongs to the answer below it: "ANSWER:\n42".
    if not text[opened:start].strip() and before.rstrip().endswith(":"):
        opened = before.rstrip().rfind("\n") + 1
    code = _KEY.search(before) and after[:1] in ('"', "'", "}", "]", ",")
    return opened, closed, Form.CODE if code else Form.LINE


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False
