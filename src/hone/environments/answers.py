r"""Where the answer stands in a completion: in `<answer>` tags, in `\boxed{}`, or after `ANSWER:`.

What the model thought is no answer: text between `<think>` and `</think>` is not looked at, nor is text before a
`</think>` that nothing opened (the chat template did), nor text after a `<think>` that nothing closed. Of what is left
the last well-formed answer wins. What is well-formed, the task says with a function that reads it.

    parser = AnswerParser(read_number)
    parser.value("Half of <answer>84</answer> is\n\\boxed{42}")  # Fraction(42)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from hone.environments.parsers import Parser, completion_text, said
from hone.environments.rubric import Range, RewardFunc, Rubric, component_name, inline
from hone.types import Message

T = TypeVar("T")
Span = tuple[int, int]
FORMS = ("tag", "boxed", "marker")
MAX_CHARS = 4096
"""Longer text between two tags is no answer."""

_TAG = re.compile(r"</?answer>")
_BRACE = re.compile(r"\\boxed\s*\{|\\[{}\\]|[{}]")
# Up to the end of the line, or of the next one where the marker ends its own; a display formula may open in between.
_MARKER = re.compile(r"\banswer[\s*_]*:[\s*_]*(?:\$\$|\\\[)?\s*([^\n<]*)", re.IGNORECASE)


class Ambiguous(ValueError):
    """The text states an answer, but not which: "3 or 4". No earlier answer may stand in for it."""


class AnswerParser(Parser, Generic[T]):
    r"""The last well-formed answer in one of `forms`: "tag" (`<answer>…</answer>`), "boxed" (`\boxed{…}`), "marker"
    (`ANSWER: …`, in any case).

    `read` turns the text of an answer into its value, or None if it is not well-formed; it may raise `Ambiguous`. An
    answer inside another is read if the outer one is not well-formed: `<answer>So it is \boxed{42}</answer>`. A
    `</answer>` that nothing opened ends an answer that starts with the text: the chat template may have opened it.
    """

    def __init__(
        self,
        read: Callable[[str], T | None],
        forms: Sequence[str] = FORMS,
        expects: str = "an answer in <answer> tags",
    ) -> None:
        assert forms and set(forms) <= set(FORMS), forms
        self.read, self.forms, self.expects = read, tuple(forms), expects

    def parse(self, text: str) -> str | None:
        """The text of the answer, without surrounding whitespace."""
        found = self._find(text)
        return None if found is None else found[0]

    def value(self, completion: str | Sequence[Message]) -> T | None:
        """What `read` makes of the answer in a completion; None if there is no well-formed one."""
        found = self._find(completion_text(completion))
        return None if found is None else found[1]

    def wrap(self, answer: str) -> str:
        """`answer` in the form that this parser knows best."""
        return {"tag": f"<answer>{answer}</answer>", "boxed": f"\\boxed{{{answer}}}", "marker": f"ANSWER: {answer}"}[
            self.forms[0]
        ]

    def _find(self, text: str) -> tuple[str, T] | None:
        text = said(text)
        spans = [span for form in self.forms for span in _SPANS[form](text)]
        spans.sort(key=lambda span: (-span[1], span[0]))  # the last to end first, and an outer one before its inner
        for start, end in spans:
            body = text[start:end].strip() if end - start <= MAX_CHARS else ""
            try:
                value = self.read(body) if body else None
            except Ambiguous:
                return None
            if value is not None:
                return body, value
        return None


@inline
def format(completion: list[Message], parser: Parser) -> float:
    """1 if there is a well-formed answer, be it right or wrong, else 0."""
    return float(parser.parse_answer(completion) is not None)


def answer_rubric(correctness: RewardFunc) -> Rubric:
    """Reward 0 without a well-formed answer, 0.1 for a wrong one, 1 for a right one. `correctness` returns 0 or 1."""
    ranges = {
        "format": Range(right=(1.0, 1.0), wrong=(1.0, 1.0)),
        component_name(correctness): Range(right=(1.0, 1.0), wrong=(0.0, 0.0)),
    }
    return Rubric([format, correctness], [0.1, 0.9], correctness=correctness, ranges=ranges)


def _tags(text: str) -> Iterator[Span]:
    start = 0
    for match in _TAG.finditer(text):
        if match.group() == "<answer>":
            start = match.end()
        elif start >= 0:
            yield start, match.start()
            start = -1


def _boxes(text: str) -> Iterator[Span]:
    r"""Of nested boxes, each. Braces in them are balanced; `\{` and `\}` are characters."""
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        token = match.group()
        if token == "}":
            start = opened.pop() if opened else -1
            if start >= 0:
                yield start, match.start()
        elif token == "{" or token.startswith(r"\boxed"):
            opened.append(-1 if token == "{" else match.end())


def _markers(text: str) -> Iterator[Span]:
    for match in _MARKER.finditer(text):
        yield match.span(1)


_SPANS: dict[str, Callable[[str], Iterator[Span]]] = {"tag": _tags, "boxed": _boxes, "marker": _markers}
