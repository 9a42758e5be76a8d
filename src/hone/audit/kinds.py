r"""What kind of thing an answer is, which decides how it may be restyled, and what would be a wrong one.

kind_of(subject)  # Kind.NUMBER, for a reference "<answer>42</answer>"
wrong_answer(subject, subjects)  # "43"
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction

from hone.audit.probes import Subject
from hone.audit.statement import answer_span
from hone.environments.numbers import read_number


class Kind(StrEnum):
    """What an answer is, by its text."""

    NUMBER = "number"
    EXPRESSION = "expression"
    """Arithmetic of numbers: `(1+2)*3`."""
    MATH = "math"
    """Other mathematics: LaTeX, symbols, points, lists of numbers."""
    WORD = "word"
    """One word, the letter of a choice, a date or a time."""
    TEXT = "text"
    EXACT = "exact"
    """Text of which every character counts, as the task declares (`answer_is_exact`)."""
    UNKNOWN = "unknown"
    """It is not known where the answer stands in the reference."""


PLAIN = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
"""A number of digits alone, which may be written in other ways."""
_WORD = re.compile(r"[^\W\d_]+|\([A-Z]\)")
_DATE = r"\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4}"
_PARTED = re.compile(rf"{_DATE}|\d+[-–]\d+|\d+:\d+(?::\d+)?")
"""A date, a range or a score, a time: no arithmetic, though it can be read as such."""
_MATH = re.compile(r"\\|[\^_=]|(?<!\w)[A-Za-z](?!\w)|[0-9]\s*[-+*/,]|[0-9][a-z](?!\w)")
_SYMBOLS = re.compile(r"[0-9]\s*[-+*]\s*[A-Za-z](?!\w)")
_LONG_WORD = re.compile(r"(?<!\\)\b[^\W\d_]{4,}")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})
_OTHER_WORDS = ("table", "window", "river", "orange", "planet")
OPPOSITES = (("yes", "no"), ("true", "false"), ("correct", "incorrect"), ("valid", "invalid"))


def kind_of(subject: Subject, exact: bool = False) -> Kind:
    """The kind of the answer in the subject's reference. `exact`: the task's answers are."""
    span = answer_span(subject)
    if span is None:
        return Kind.UNKNOWN
    return Kind.EXACT if exact else kind_of_text(subject.text[slice(*span)])


def kind_of_text(answer: str) -> Kind:
    """The kind of an answer, by its text alone."""
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
    """The value of arithmetic with + - * / and brackets; None if it is something else, or divides by zero."""
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
    """The answer as it stands in the reference, else as the data has it."""
    span = answer_span(subject)
    return subject.text[slice(*span)] if span else subject.example.answer.strip()


def same_answer(given: str, answer: str) -> bool:
    """Whether two answers say the same: as arithmetic, as numbers, or as text without case and outer punctuation."""
    left, right = value_of(given), value_of(answer)
    if left is not None and right is not None:
        return left == right
    numbers = read_number(given), read_number(answer)
    if numbers != (None, None):
        return numbers[0] == numbers[1]
    if left is not None or right is not None:
        return False
    return _bare(given) == _bare(answer)


def wrong_answers(subject: Subject, subjects: Sequence[Subject], count: int = 2) -> list[str]:
    """`count` answers, each different, of the form of the right one and wrong; fewer if none can be made."""
    return wrong_for(answer_of(subject), other_answers(subject, subjects), count)


def wrong_for(answer: str, others: Sequence[str] = (), count: int = 2) -> list[str]:
    """`count` wrong answers in place of `answer`; `others` are such, those of other examples."""
    found: list[str] = []
    for candidate in _candidates(answer, others):
        if not same_answer(candidate, answer) and not any(same_answer(candidate, other) for other in found):
            found.append(candidate)
        if len(found) == count:
            break
    return found


def wrong_answer(subject: Subject, subjects: Sequence[Subject]) -> str | None:
    """A wrong answer of the form of the right one, if one can be made."""
    return next(iter(wrong_answers(subject, subjects, 1)), None)


def shifted(answer: str, by: int = 1) -> str | None:
    """The number plus `by`, written in the same way; None if it is none of digits alone. Of a decimal number it is the
    first digit that is moved: such numbers may be meant within a tolerance.
    """
    if not PLAIN.fullmatch(answer):
        return None
    whole, point, decimals = answer.partition(".")
    step = 10 ** (len(whole.lstrip("-")) - 1) if point else 1
    return f"{int(whole) + by * step}{point}{decimals}" if not whole.startswith("-0") else None


def other_answers(subject: Subject, subjects: Sequence[Subject]) -> list[str]:
    """The answers of other examples that differ from this one's, each once, in order."""
    answer = answer_of(subject)
    others = dict.fromkeys(answer_of(other) for other in subjects)
    return [other for other in others if other and not same_answer(other, answer)]


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
        return [*_beside(answer), *others, *_OTHER_WORDS]
    return [*others, answer[::-1], *_OTHER_WORDS]


def _beside(word: str) -> list[str]:
    """The other options, of a word that is one of few: a letter, yes or no."""
    letter = word.strip("()")
    if len(letter) == 1 and letter.upper() in "ABCDE":
        others = [other for other in "ABCD" if other != letter.upper()]
        return [word.replace(letter, other if letter.isupper() else other.lower()) for other in others]
    for pair in OPPOSITES:
        if word.lower() in pair:
            other = pair[1 - pair.index(word.lower())]
            return [other.upper() if word.isupper() else other.capitalize() if word[:1].isupper() else other]
    return []


def _bare(text: str) -> str:
    return " ".join(text.split()).strip(" .()'\"*`$").casefold()
