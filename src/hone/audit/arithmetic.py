"""Arithmetic that breaks the rules of a task, yet comes to the right value: what `eval` behind a pattern lets by."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

from hone.audit.kinds import value_of

_OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
Term = tuple[Fraction, str]


def claimed(answer: str, say: Callable[[str], str], form: str) -> str | None:
    """`form` filled in for an expression, if it then does not use the numbers of `answer` for its value.

    It may name {answer}, its {value}, and {sum}, all its numbers added up (which must be something else).
    """
    value, numbers = value_of(answer), re.findall(r"\d+", answer)
    if value is None or value.denominator != 1 or len(numbers) < 2:
        return None
    if "{sum}" in form and sum(map(int, numbers)) == value:
        return None
    if form.startswith("{value}") and str(value) in numbers:
        return None
    return say(form.format(answer=answer, value=value, sum="+".join(numbers)))


def glued(answer: str, say: Callable[[str], str], glue: str) -> str | None:
    """An expression of the value of `answer` in which two of its numbers became one: 2 and 5 are 2.5 or 25.

    None if there is none: there are few.
    """
    value, numbers = value_of(answer), re.findall(r"\d+", answer)
    if value is None or not 3 <= len(numbers) <= 4:
        return None
    for i, j in ((i, j) for i in range(len(numbers)) for j in range(len(numbers)) if i != j):
        one = f"{numbers[i]}{glue}{numbers[j]}"
        rest = [number for k, number in enumerate(numbers) if k not in (i, j)]
        for total, text in _values([(Fraction(number), number) for number in (one, *rest)]):
            if total == value:
                return say(text)
    return None


def _values(terms: Sequence[Term]) -> Iterator[Term]:
    """What two or three numbers can be combined to, all of them used."""
    if len(terms) == 1:
        yield terms[0]
    for i, j in ((i, j) for i in range(len(terms)) for j in range(len(terms)) if i != j):
        rest = [term for k, term in enumerate(terms) if k not in (i, j)]
        for sign, apply in _OPERATORS.items():
            joined = apply(terms[i][0], terms[j][0]), f"({terms[i][1]}{sign}{terms[j][1]})"
            yield from _values([joined, *rest])
