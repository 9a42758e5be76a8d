r"""Parsers find the answer in a completion. None means that it has no well-formed answer; a wrong answer is an answer.

Thoughts are not answers. Text is skipped between `<think>` and `</think>`, before a `</think>` without `<think>` (which
the chat template wrote), and after a `<think>` without `</think>`.

    parser = AnswerParser(read_number)
    parser.value("Half of <answer>84</answer> is\n\boxed{42}")  # Fraction(42)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

from hone.types import Message

T = TypeVar("T")
Span = tuple[int, int]
FORMS = ("tag", "boxed", "marker")
MAX_CHARS = 4096
"""Longer text between two tags is no answer."""

LONGEST_LINE = 512
"""Characters to read of a line after `ANSWER:`; the rest of a longer line must be a remark."""
_PROSE = "every step was checked, so I am sure of it."

_TAG = re.compile(r"<(/?)answer>")
_BRACE = re.compile(r"\\boxed\s*\{|\\[{}\\]|[{}]")
# The answer is in the rest of the line, or in the next one where the marker ends its own; a display formula may open in
# between. An HTML tag or a special token ends it, `x < 5` and `<72>` do not.
_MARKER = re.compile(r"\banswer[\s*_]*:[\s*_]*(?:\$\$|\\\[)?\s*", re.IGNORECASE)
_SENTENCE = re.compile(r"\banswer\s+is\b[\s*_:]*", re.IGNORECASE)
_LINE = re.compile(r"(?:[^\n<]|<(?!\||/?[A-Za-z][\w-]{0,40}\s?/?>))*")
_FRAME = re.compile(
    r"\A(?:(?:the|my|our) )?(?:(?:final|correct) )?answer is:? |\.? I hope (?:it|this|that) is (?:correct|right)\.?\Z",
    re.IGNORECASE,
)
REMARK = re.compile(
    r"(?<=\S)(?:[.;!]+ (?=[^\W\d_])|,? (?:because|since|as|which)\b| ?— ?| [-–] (?=[^\W\d_]+ [^\W\d_]{2})"
    r"| (?P<bracket>[(\[])(?=[^()\[\]]*(?<![\\\w])(?:[A-Za-z]{4}|[A-Za-z']+ [A-Za-z])))"
)
"""The beginning of a sentence, a reason or a remark in brackets after an answer."""
_DOUBT = re.compile(r"\W*(?:or|alternatively|maybe|perhaps|possibly|another|either|otherwise)\b", re.IGNORECASE)
_DENIAL = re.compile(r"\W*(?:no|nope|not|but|wait|actually|is (?:wrong|incorrect|not))\b", re.IGNORECASE)
_THINK = re.compile(r"</?think>")


def message_text(message: Message) -> str:
    """Return the text of a message. The texts of content parts are joined."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


def completion_text(completion: str | Sequence[Message]) -> str:
    """Return the text that is graded: the string itself, or the last assistant message ('' if there is none)."""
    if isinstance(completion, str):
        return completion
    return next((message_text(m) for m in reversed(completion) if m.get("role") == "assistant"), "")


def visible_text(text: str) -> str:
    """Return `text` without thoughts, and without markers `<|…|>` that a server may leave at the end."""
    parts: list[str] = []
    start, thinking = 0, False
    for tag in _THINK.finditer(text):
        if tag.group() == "<think>":
            if not thinking:
                parts.append(text[start : tag.start()])
            thinking = True
        else:
            if not thinking:
                parts.clear()
            start, thinking = tag.end(), False
    if not thinking:
        parts.append(text[start:])
    return _without_specials("\n".join(parts))


class Parser:
    """The answer is the whole text, without surrounding whitespace. Subclasses override `parse`."""

    expects = "an answer"
    """The content of a well-formed completion, in words, for messages about unparsable completions."""

    def parse(self, text: str) -> str | None:
        """Return the answer in `text`, or None if there is no well-formed answer."""
        return text.strip() or None

    def parse_answer(self, completion: str | Sequence[Message]) -> str | None:
        """Return the answer's text. In a list of messages, only the last assistant message is read."""
        return self.parse(completion_text(completion))

    def value(self, completion: str | Sequence[Message]) -> Any:
        """Return the answer's value (by default its text), or None."""
        return self.parse_answer(completion)


class TagParser(Parser):
    """The answer is the content of the last well-formed pair `<tag>…</tag>`.

    The content of a well-formed pair has neither of the two tags, and is not only whitespace. Text after the pair and
    an unclosed tag are ignored. Whitespace around the answer is stripped.
    """

    def __init__(self, tag: str) -> None:
        assert re.fullmatch(r"\w+", tag), tag
        self.tag, self.opening, self.closing = tag, f"<{tag}>", f"</{tag}>"
        self.expects = f"a {self.opening}…{self.closing} pair"
        self._tags = re.compile(f"<(/?){tag}>")

    def parse(self, text: str) -> str | None:
        text = text if self.tag == "think" else visible_text(text)
        answers = [text[start:end].strip() for start, end in _pairs(text, self._tags, -1)]
        return next(filter(None, reversed(answers)), None)

    def wrap(self, answer: str) -> str:
        return f"{self.opening}{answer}{self.closing}"


def _without_specials(text: str) -> str:
    end = len(text)
    while True:
        while end and text[end - 1].isspace():
            end -= 1
        start = text.rfind("<|", max(0, end - 64), end)
        if not text.startswith("|>", end - 2) or start < 0 or "|" in text[start + 2 : end - 2]:
            return text[:end]
        end = start


class Ambiguous(ValueError):
    """The text states several answers, such as "3 or 4". Then no earlier answer counts."""


class AnswerParser(Parser, Generic[T]):
    r"""The answer is the last well-formed text in one of `forms`: "tag" (`<answer>…</answer>`), "boxed" (`\boxed{…}`),
    "marker" (`ANSWER: …`, in upper or lower case).

    `read` turns the text of an answer into its value. It returns None if the text is not well-formed, and may raise
    `Ambiguous`. Without `read` the value is the text. An answer inside another is read if the outer one is not
    well-formed: `<answer>So it is \boxed{42}</answer>`. A `</answer>` without `<answer>` ends an answer that begins
    with the text, because the chat template may have written the `<answer>`.

    `read_line` reads a line after a marker: by default with `read`, or not at all if `read` accepts prose. A line is
    read whole or, if that is not well-formed, without a remark at its end: `42 (I checked it)`, `42. I hope it is
    correct.` If no answer is found, `read` tries lines after markers, and `read_line` tries the
    form "sentence": `the answer is …`.
    """

    def __init__(
        self,
        read: Callable[[str], T | None] | None = None,
        forms: Sequence[str] = FORMS,
        expects: str = "an answer in <answer> tags",
        read_line: Callable[[str], T | None] | None = None,
    ) -> None:
        assert forms and set(forms) <= _SPANS.keys(), forms
        self.read = read or cast(Callable[[str], T | None], str)
        self.forms, self.expects = tuple(forms), expects
        if read_line is None:
            try:
                takes_prose = self.read(_PROSE) is not None
            except Ambiguous:
                takes_prose = True
            read_line = (lambda line: None) if takes_prose else self.read
        self.read_line = read_line

    def parse(self, text: str) -> str | None:
        found = self._find(text)
        return None if found is None else found[0]

    def value(self, completion: str | Sequence[Message]) -> T | None:
        """Return the answer's value, as `read` gives it; None if no answer is well-formed."""
        found = self._find(completion_text(completion))
        return None if found is None else found[1]

    def wrap(self, answer: str) -> str:
        """Return `answer` in the first of the forms."""
        return {"tag": f"<answer>{answer}</answer>", "boxed": f"\\boxed{{{answer}}}", "marker": f"ANSWER: {answer}"}[
            self.forms[0]
        ]

    def _find(self, text: str) -> tuple[str, T] | None:
        text = visible_text(text)
        spans = [(span, form) for form in self.forms for span in _SPANS[form](text)]
        spans.sort(key=lambda one: (-one[0][1], one[0][0]))  # the last to end first, and an outer one before its inner
        weak = {"sentence": self.read_line} | ({} if self.read is self.read_line else {"marker": self.read})
        tries = [(*one, self.read_line if one[1] == "marker" else self.read) for one in spans if one[1] != "sentence"]
        tries += [(*one, weak[one[1]]) for one in spans if one[1] in weak]
        try:
            for (start, end), form, read in tries:
                line = form in ("marker", "sentence")
                body = text[start:end].strip() if line or end - start <= MAX_CHARS else ""
                found = _first(read, _parts(body) if line else [body])
                if found is not None:
                    return found
        except Ambiguous:
            pass
        return None


def _pairs(text: str, tags: re.Pattern[str] = _TAG, start: int = 0) -> Iterator[Span]:
    """Yield spans between an opening and a closing tag, without tags inside. `start` 0: `text` begins inside a tag."""
    for match in tags.finditer(text):
        if not match[1]:
            start = match.end()
        elif start >= 0:
            yield start, match.start()
            start = -1


def _boxes(text: str) -> Iterator[Span]:
    r"""Yield the span in each box, nested boxes too. Braces in a box are balanced; `\{` and `\}` are characters."""
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        token = match.group()
        if token == "}":
            start = opened.pop() if opened else -1
            if start >= 0:
                yield start, match.start()
        elif token == "{" or token.startswith(r"\boxed"):
            opened.append(-1 if token == "{" else match.end())


def _after(mark: re.Pattern[str]) -> Callable[[str], Iterator[Span]]:
    def spans(text: str) -> Iterator[Span]:
        marks = list(mark.finditer(text))
        ends = [match.start() for match in marks[1:]] + [len(text)]
        for match, end in zip(marks, ends, strict=False):
            line = _LINE.match(text, match.end(), max(end, match.end()))
            assert line is not None
            yield line.span()

    return spans


def _parts(line: str) -> Iterator[str]:
    """Yield the line, then its part before a remark. Raises Ambiguous if the remark corrects it: `42. No, 43.`"""
    line = " ".join(line[: LONGEST_LINE + 1].split())
    line = _FRAME.sub("", line)
    if len(line) <= LONGEST_LINE:
        yield line
    remark = REMARK.search(line)
    if remark:
        begins = line[remark.end() :]
        if _DOUBT.match(begins) or (not remark["bracket"] and _DENIAL.match(begins)):
            raise Ambiguous(line)
        yield line[: remark.start()]


def _first(read: Callable[[str], T | None], parts: Iterable[str]) -> tuple[str, T] | None:
    doubt = None
    for part in parts:
        try:
            value = read(part) if part else None
        except Ambiguous as error:
            doubt = error
        else:
            if value is not None:
                return part, value
    if doubt is not None:
        raise doubt
    return None


_SPANS: dict[str, Callable[[str], Iterator[Span]]] = {
    "tag": _pairs,
    "boxed": _boxes,
    "marker": _after(_MARKER),
    "sentence": _after(_SENTENCE),
}
