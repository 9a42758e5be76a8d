r"""Finds the answer in a reference, its marks (such as `<answer>`) and its kind; makes wrong answers.

statement_of(subject)  # head "6 * 7 is\n", opening "<answer>", answer "42", closing "</answer>", tail "\n"
kind_of(subject), wrong_answer(subject, subjects)  # Kind.NUMBER, "43"
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from hone.environments.numbers import read_number
from hone.extensions.audit.probes import Subject


class Form(StrEnum):
    """The marks around an answer in a completion."""

    TAG = "tag"
    BOXED = "boxed"
    LINE = "line"
    """The answer is the rest of a line: `ANSWER: 42`, `The answer is 42.`"""
    CODE = "code"
    """JSON or code, where an answer has only one spelling."""
    BARE = "bare"
    """No marks: the completion is the answer."""


class Kind(StrEnum):
    """The kind of an answer, judged by its text."""

    NUMBER = "number"
    EXPRESSION = "expression"
    """Arithmetic of numbers: `(1+2)*3`."""
    MATH = "math"
    """Other mathematics: LaTeX, symbols, points, lists of numbers."""
    WORD = "word"
    """One word, the letter of a choice, a date or a time."""
    TEXT = "text"
    EXACT = "exact"
    """Every character counts, as the task declares (`answer_is_exact`)."""
    UNKNOWN = "unknown"
    """The reference has no visible answer."""


PLAIN = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
"""A number in plain digits: `-42`, `3.5`."""
OPPOSITES = (("yes", "no"), ("true", "false"), ("correct", "incorrect"), ("valid", "invalid"))
_OTHER_WORDS = ("table", "window", "river", "orange", "planet")

_OPENING_TAG = re.compile(r"<(\w+)>\s*\Z")
_BOX = re.compile(r"\\boxed\s*\{\s*\Z")
_KEY = re.compile(r"""["']\s*:\s*["']?\Z|=\s*["']\Z|["'\[]\Z""")
_FORMS = (re.compile(r"<(\w+)>\s*([^<>]*?)\s*</\1>"), re.compile(r"\\boxed\{([^{}]*)\}"), re.compile(r":[ \t]*(\S.*)"))
_FENCE = re.compile(r"^```[^\n`]*\n(.*?)\n?^```[ \t]*$", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```[^\n`]*\n\s*\Z", re.MULTILINE)
_THOUGHT = re.compile(r"</(think|thinking|reasoning|thought|scratchpad)>\s*")
_CLOSED = re.compile(r"<(think|thinking|reasoning|thought|scratchpad)>.*?</\1>\s*", re.DOTALL)

_WORD = re.compile(r"[^\W\d_]+|\([A-Z]\)")
_DATE = r"\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4}"
_PARTED = re.compile(rf"{_DATE}|\d+[-–]\d+|\d+:\d+(?::\d+)?")
"""A date, range, score or time, which must not be computed as arithmetic."""
_MATH = re.compile(r"\\|[\^_=]|(?<!\w)[A-Za-z](?!\w)|[0-9]\s*[-+*/,]|[0-9][a-z](?!\w)")
_SYMBOLS = re.compile(r"[0-9]\s*[-+*]\s*[A-Za-z](?!\w)")
_LONG_WORD = re.compile(r"(?<!\\)\b[^\W\d_]{4,}")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})


@dataclass(frozen=True)
class Statement:
    """The parts of a completion, in order. If no answer is found, `opening` is the whole text."""

    head: str
    opening: str
    answer: str
    closing: str
    tail: str
    form: Form

    @property
    def text(self) -> str:
        return self.head + self.marked + self.tail

    @property
    def marked(self) -> str:
        return self.opening + self.answer + self.closing

    @property
    def thought(self) -> str:
        """The start of `head`, up to the last tag such as `</think>`."""
        ends = [match.end() for match in _THOUGHT.finditer(self.head)]
        return self.head[: ends[-1]] if ends else ""

    @property
    def frame(self) -> str:
        """The thought's tags with filler text between them, for tasks that require a thought."""
        blocks = _CLOSED.findall(self.head)
        return "".join(f"<{tag}>\nI have thought about it.\n</{tag}>\n" for tag in blocks)

    def stating(self, answer: str) -> str:
        """Return `frame`, followed by `answer` in the reference's marks."""
        return self.frame + self.opening + answer + self.closing

    def answering(self, answer: str) -> str:
        return replace(self, answer=answer).text


def statement_of(subject: Subject) -> Statement:
    text, span = subject.text, answer_span(subject)
    if span is None:
        return Statement("", text, "", "", "", Form.BARE)
    start, end = span
    opened, closed, form = _marked(text, start, end)
    return Statement(text[:opened], text[opened:start], text[start:end], text[end:closed], text[closed:], form)


def answer_span(subject: Subject) -> tuple[int, int] | None:
    """Return the span of the answer in the reference's text; None if no answer is found.

    The answer is what the parser reads, if it is a part of the text; else the example's answer, else the last marked
    answer, else all text, if the parser reads it. If such an answer is in a code fence, it is the whole block.
    """
    text = subject.text
    if not text.strip():
        return None
    if subject.answer and subject.answer != text.strip():
        start = text.rfind(subject.answer)
        return start, start + len(subject.answer)
    span = _stated(subject, text)
    if span is None:
        return None
    inside = [b for b in _FENCE.finditer(text) if b.start() < span[1] and span[0] < b.end()]
    return inside[-1].span(1) if inside else span


def _stated(subject: Subject, text: str) -> tuple[int, int] | None:
    """Return the span of the example's answer (its last place), else of the last marked answer, else of all text."""
    gold = subject.example.answer.rpartition("####")[2].strip()
    forms = [re.compile(rf"(?<![\w.]){re.escape(gold)}(?!\w|[.,]\d)")] if gold else []
    for form in (*forms, *_FORMS):
        found = [match for match in form.finditer(text) if match[match.lastindex or 0].strip()]
        if found:
            return found[-1].span(found[-1].lastindex or 0)
    start = len(text) - len(text.lstrip())
    return (start, len(text.rstrip())) if subject.answer else None


def _marked(text: str, start: int, end: int) -> tuple[int, int, Form]:
    """Return span and form of the statement around the answer `text[start:end]`."""
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


def kind_of(subject: Subject, exact: bool = False) -> Kind:
    """Return the kind of the answer in the subject's reference. `exact`: every character of an answer counts."""
    span = answer_span(subject)
    if span is None:
        return Kind.UNKNOWN
    return Kind.EXACT if exact else kind_of_text(subject.text[slice(*span)])


def kind_of_text(answer: str) -> Kind:
    number = read_number(answer)
    if number is not None and not _LONG_WORD.search(answer) and not _SYMBOLS.search(answer):
        # A bracket behind a number may be a remark, or arithmetic: 42-(94-64).
        return Kind.NUMBER if value_of(answer) in (None, number) else Kind.EXPRESSION
    if _WORD.fullmatch(answer) or _PARTED.fullmatch(answer):
        return Kind.WORD
    if value_of(answer) is not None:
        return Kind.EXPRESSION
    short = len(answer) <= 200 and "\n" not in answer
    if short and _MATH.search(answer) and ("\\" in answer or not _LONG_WORD.search(answer)):
        return Kind.MATH
    return Kind.TEXT


def value_of(expression: str) -> Fraction | None:
    """Compute arithmetic with + - * / and brackets. Returns None for other texts and division by zero."""
    text = expression.translate(_SIGNS)
    if len(text) > 200 or not re.fullmatch(r"[0-9\s+\-*/()]+", text) or "**" in text or "//" in text:
        return None
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, RecursionError, MemoryError, ValueError):
        return None


def _value(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError(ast.dump(node)[:80])


def answer_of(subject: Subject) -> str:
    """Return the answer in the reference, or the example's answer if the reference has none."""
    span = answer_span(subject)
    return subject.text[slice(*span)] if span else subject.example.answer.strip()


def same_answer(given: str, answer: str) -> bool:
    """Compare two answers as arithmetic, as numbers, or as text without case and outer punctuation."""
    left, right = value_of(given), value_of(answer)
    if left is not None and right is not None:
        return left == right
    numbers = read_number(given), read_number(answer)
    if numbers != (None, None):
        return numbers[0] == numbers[1]
    if left is not None or right is not None:
        return False
    one, other = (" ".join(text.split()).strip(" .()'\"*`$").casefold() for text in (given, answer))
    return one == other


def wrong_answer(subject: Subject, subjects: Sequence[Subject]) -> str | None:
    return next(iter(wrong_answers(subject, subjects, 1)), None)


def wrong_answers(subject: Subject, subjects: Sequence[Subject], count: int = 2) -> list[str]:
    """Return up to `count` different wrong answers of the right answer's kind."""
    return wrong_for(answer_of(subject), other_answers(subject, subjects), count)


def wrong_for(answer: str, others: Sequence[str] = (), count: int = 2) -> list[str]:
    """Return up to `count` answers that differ from `answer`. `others` are answers of other examples."""
    found: list[str] = []
    for candidate in _candidates(answer, others):
        if len(found) < count and not any(same_answer(candidate, other) for other in (answer, *found)):
            found.append(candidate)
    return found


def other_answers(subject: Subject, subjects: Sequence[Subject]) -> list[str]:
    answer = answer_of(subject)
    others = dict.fromkeys(answer_of(other) for other in subjects)
    return [other for other in others if other and not same_answer(other, answer)]


def shifted(answer: str, by: int = 1) -> str | None:
    """Add `by` to an integer, or to the first digit of a decimal, to exceed tolerances. Return None for other texts."""
    if not PLAIN.fullmatch(answer):
        return None
    whole, point, decimals = answer.partition(".")
    step = 10 ** (len(whole.lstrip("-")) - 1) if point else 1
    return f"{int(whole) + by * step}{point}{decimals}" if not whole.startswith("-0") else None


def _candidates(answer: str, others: Sequence[str]) -> list[str]:
    kind = kind_of_text(answer) if answer else Kind.TEXT
    if kind is Kind.NUMBER:
        moved = [shifted(answer, by) for by in (1, 2, 5)]
        return [number for number in moved if number is not None] or ["7919", "104729"]
    if kind is Kind.EXPRESSION:
        return [f"{answer}+1", f"{answer}+2"]
    if kind is Kind.MATH:
        return [*others, r"\frac{7919}{3}", "104729"]
    if kind is Kind.WORD:
        return [*_other_options(answer), *others, *_OTHER_WORDS]
    return [*others, answer[::-1], *_OTHER_WORDS]


def _other_options(word: str) -> list[str]:
    """Return the alternatives to a choice: other letters, or the opposite (`no` for `yes`)."""
    letter = word.strip("()")
    if len(letter) == 1 and letter.upper() in "ABCDE":
        others = [other for other in "ABCD" if other != letter.upper()]
        return [word.replace(letter, other if letter.isupper() else other.lower()) for other in others]
    for pair in OPPOSITES:
        if word.lower() in pair:
            other = pair[1 - pair.index(word.lower())]
            return [other.upper() if word.isupper() else other.capitalize() if word[:1].isupper() else other]
    return []
