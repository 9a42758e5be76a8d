r"""Compare two pieces of mathematics, in a separate process for `hone.grading.math`.

math-verify's LaTeX grammar parses both texts. Its parser of plain expressions calls `eval`, so hone doesn't use it. Its
comparison rounds to six decimal places, so that all tiny numbers are equal. hone compares by these rules:

- Rational numbers are compared by `hone.grading.decimals`. Irrational numbers are equal if 50 significant digits agree.
  A decimal of six or more significant digits, such as `3.14159`, may stand for an irrational number, such as \pi.
- Formulas are equal if sympy simplifies their difference to 0, with decimals as exact fractions.
- An equation stands for its right side if it is `name = value`, or if its sides are equal and have no variables.

The same rules hold for members of tuples, sets, intervals and matrices, and for solutions of equations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy, normalize_latex
from latex2sympy2_extended.logic import And
from math_verify import LatexExtractionConfig, parse
from math_verify.grader import should_treat_as_complex, sympy_compare_symbols, unwrap_fcs
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from hone.grading.decimals import DECIMAL, is_rounded, same_rational

EXACT_DIGITS = 50
"""Two irrational numbers are equal if this many significant digits agree."""
_CALL_NAME = re.compile(r"\A\s*\\?[A-Za-z]+\s*\([^()]*=[^()]*\)\s*=")
"""A name such as `P(X=2)` and its equals sign, which the grammar cannot read."""
_FORMS = [LatexExtractionConfig(boxed_match_priority=0)]
_FORM = replace(_FORMS[0].normalization_config, boxed="last")
_PERCENT = sympy.UnevaluatedExpr(sympy.Rational(1, 100))
_FLIPPED = {sympy.StrictGreaterThan: sympy.StrictLessThan, sympy.GreaterThan: sympy.LessThan}


def start() -> Callable[[list[str]], bool | None]:
    """Return a function of `[answer, gold]`. It returns True if they are equal, None if the answer can't be read."""

    def equal(question: list[str]) -> bool | None:
        try:
            answer = _read(question[0])
        except Exception:
            return None
        try:
            return _same(_read(question[1]), answer)
        except Exception:  # what sympy cannot work out is not equal
            return False

    return equal


@dataclass(frozen=True)
class _Term:
    """An expression or a part of one. `numerals` has the digits of each decimal as written."""

    expr: Any
    numerals: dict[Any, str]

    def part(self, expr: Any) -> _Term:
        return _Term(expr, self.numerals)

    def exact(self) -> Any:
        """Return the evaluated expression, with fractions for decimals."""
        fractions = {number: sympy.Rational(self.fraction(number)) for number in self.expr.atoms(sympy.Float)}
        return self.expr.xreplace(fractions).doit()

    def fraction(self, number: Any) -> Fraction:
        sign = -1 if number < 0 else 1
        return sign * Fraction(self.numerals.get(abs(number), str(abs(number))))

    def numeral(self, value: Fraction) -> str:
        """Return the digits if the expression is one decimal, without sign, percent sign and power of ten; else ""."""
        numbers = self.expr.atoms(sympy.Float)
        if len(numbers) != 1 or not value:
            return ""
        [number] = numbers
        scale = abs(value / self.fraction(number))
        is_power = sympy.integer_log(scale.numerator * scale.denominator, 10)[1]
        return self.numerals.get(abs(number), "") if is_power else ""


def _read(text: str) -> _Term:
    latex = normalize_latex(_CALL_NAME.sub("", text), _FORM)
    try:
        real = not should_treat_as_complex(latex)
        expr = latex2sympy(latex, is_real=real, convert_degrees=False, normalization_config=None)
    except Exception:
        if "=" in latex:  # math-verify would take the last side alone
            raise
        found = parse(f"\\boxed{{{text}}}", _FORMS, fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
        [expr] = found
    written = sorted((numeral.replace(",", "") for numeral in DECIMAL.findall(latex)), key=len)
    return _Term(expr, {sympy.Float(numeral): numeral for numeral in written})


def _same(gold: _Term, answer: _Term) -> bool:
    sides = _sides(gold.expr), _sides(answer.expr)
    if all(sides) and not any(map(_is_closed, sides)):
        return _same_equations(gold, answer, *sides)
    right, given = _stated(gold, sides[0], is_gold=True), _stated(answer, sides[1])
    if right is None and isinstance(answer.expr, sympy.Set):  # x^2 = 4 and {-2, 2}
        right = gold.part(_solutions(gold))
    if right is None or given is None:
        return False
    if _is_relation(right.expr):
        if _is_relation(given.expr):
            return _same_relations(right, given)
        if isinstance(given.expr, sympy.Set):  # 1 < x < 2 and (1, 2)
            right = right.part(_solutions(right))
    if isinstance(right.expr, sympy.Set | sympy.Tuple) or isinstance(given.expr, sympy.Set | sympy.Tuple):
        return _same_sets(right, given)
    if isinstance(right.expr, sympy.Symbol) or isinstance(given.expr, sympy.Symbol):
        return sympy_compare_symbols(right.expr, given.expr)
    return _same_values(right, given)


def _links(expr: Any) -> Sequence[Any]:
    """Return the relations in a chain such as `1 < x < 2`; [expr] for other expressions."""
    return expr._unsorted_args if isinstance(expr, And) else [expr]  # pyright: ignore[reportAttributeAccessIssue]


def _sides(expr: Any) -> list[Any]:
    """Return the sides of an equation or a chain of equations; [] for other expressions."""
    chain = _links(expr)
    if not all(isinstance(one, sympy.Eq) for one in chain):
        return []
    return [chain[0].lhs, *(one.rhs for one in chain)]


def _is_closed(sides: Sequence[Any]) -> bool:
    return bool(sides) and not any(side.free_symbols or side.atoms(AppliedUndef) for side in sides)


def _stated(term: _Term, sides: list[Any], is_gold: bool = False) -> _Term | None:
    """Return the value that an equation states, or None. An expression that is no equation is returned as it is.

    The numbers in a chain must be equal: `x = 2 + 4 = 7` states no value. A gold answer is not checked.
    """
    if not sides:
        return term
    named = _is_name(sides[0])
    values = [term.part(side) for side in sides[named:]]
    numbers = [value for value in values if _is_closed([value.expr])]
    if not named and len(numbers) < len(values):
        return None
    return values[-1] if is_gold or all(_same(numbers[0], number) for number in numbers[1:]) else None


def _is_name(expr: Any) -> bool:
    """Return True if `expr` may name a value: `x`, `f(2)`, `|AB|`, `AB/CD`, `(x, y)`, but not a sum or power."""
    if isinstance(expr, sympy.Symbol | AppliedUndef | sympy.Derivative):
        return True
    if isinstance(expr, sympy.Pow) and expr.exp != -1:
        return False
    parts = expr.args[:1] if isinstance(expr, sympy.Pow) else expr.args
    named = isinstance(expr, sympy.Mul | sympy.Pow | sympy.Function | sympy.Tuple)
    return named and bool(parts) and all(map(_is_name, parts))


def _is_relation(expr: Any) -> bool:
    return all(isinstance(one, Relational) for one in _links(expr))


def _solutions(term: _Term) -> Any:
    """Return the solution set of a relation in one variable, or in a function of it: `0 < f(x) < 1`."""
    relation: Any = unwrap_fcs(term.exact())
    return relation.as_set()


def _same_equations(gold: _Term, answer: _Term, gold_sides: list[Any], sides: list[Any]) -> bool:
    if _is_name(sides[0]) and gold_sides[0] == sides[0]:
        right, given = _stated(gold, gold_sides, is_gold=True), _stated(answer, sides)
        return right is not None and given is not None and _same(right, given)
    return _same_relations(gold, answer)


def _same_relations(gold: _Term, answer: _Term) -> bool:
    chains = _links(gold.expr), _links(answer.expr)
    if len(chains[0]) != len(chains[1]):
        return False
    if len(chains[0]) > 1:
        pairs = zip(*chains, strict=True)
        return all(_same_relations(gold.part(one), answer.part(other)) for one, other in pairs)
    (kind, left), (other, right) = _as_difference(gold), _as_difference(answer)
    if kind is not other:
        return False
    if _is_zero(left - right) or (kind is sympy.Eq and _is_zero(left + right)):
        return True
    if kind is not sympy.Eq:
        solved: list[Any] = [kind(side, 0) for side in (left, right)]
        return solved[0].as_set() == solved[1].as_set()
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    solutions = [sympy.solve(side, symbols, dict=True) for side in (left, right)]
    return bool(solutions[0]) and _matches(
        solutions[0],
        solutions[1],
        lambda a, b: a.keys() == b.keys() and all(_same(gold.part(a[k]), answer.part(b[k])) for k in a),
    )


def _as_difference(term: _Term) -> tuple[Any, Any]:
    """Return a relation's class (with > turned into <), and its left side minus its right side."""
    kind: Any = type(term.expr)
    left, right = term.part(term.expr.lhs).exact(), term.part(term.expr.rhs).exact()
    return (_FLIPPED[kind], right - left) if kind in _FLIPPED else (kind, left - right)


def _matches(ones: Sequence[Any], others: Sequence[Any], same: Callable[[Any, Any], bool]) -> bool:
    left = list(others)
    for one in ones:
        found = next((i for i, other in enumerate(left) if same(one, other)), None)
        if found is None:
            return False
        left.pop(found)
    return not left


def _same_sets(gold: _Term, answer: _Term) -> bool:
    """Compare sets, tuples and intervals. The order of a tuple counts, even if the answer has no brackets."""
    right, given = gold.expr, answer.expr
    if isinstance(right, sympy.Interval) and isinstance(given, sympy.Interval):
        ends = ((right.start, given.start), (right.end, given.end))
        return (right.left_open, right.right_open) == (given.left_open, given.right_open) and all(
            _same(gold.part(one), answer.part(other)) for one, other in ends
        )
    ordered = not isinstance(right, sympy.FiniteSet) and isinstance(right, sympy.Set | sympy.Tuple)
    ones, others = _members(right, ordered), _members(given, ordered)
    if ones is None or others is None:
        one, other = gold.exact(), answer.exact()
        return one == other or sympy.SymmetricDifference(one, other).doit().is_empty is True

    def same(one: Any, other: Any) -> bool:
        return _same(gold.part(one), answer.part(other))

    if not ordered:
        return _matches(ones, others, same)
    return len(ones) == len(others) and all(map(same, ones, others))


def _members(expr: Any, ordered: bool) -> Sequence[Any] | None:
    """Return the members of a set, tuple or point, or (value,). The grammar reads a point as an open interval."""
    if isinstance(expr, sympy.Interval):
        return (expr.start, expr.end) if expr.is_open else None
    if isinstance(expr, sympy.FiniteSet | sympy.Tuple):
        return getattr(expr, "_unsorted_args", expr.args) if ordered else expr.args
    return None if isinstance(expr, sympy.Set) else (expr,)


def _same_values(gold: _Term, answer: _Term) -> bool:
    values: list[Any] = [e.expr if isinstance(e.expr, sympy.MatrixBase) else e.exact() for e in (gold, answer)]
    right, given = values
    if all(isinstance(value, sympy.MatrixBase) for value in values):
        pairs = zip(right.flat(), given.flat(), strict=True)
        return right.shape == given.shape and all(_same(gold.part(one), answer.part(other)) for one, other in pairs)
    wholes = [e.args[0] if e.args[1:] == (_PERCENT,) else e for e in (gold.expr, answer.expr)]
    if wholes[0] == wholes[1] and all(isinstance(whole, sympy.Integer) for whole in wholes):
        return True  # 28 for 28 %
    if right.is_Rational and given.is_Rational:
        one, other = _fraction(right), _fraction(given)
        return same_rational(one, other, gold.numeral(one), answer.numeral(other))
    if right == given or _is_zero(right - given):
        return True
    return _is_rounding(gold, right, given) or _is_rounding(answer, given, right)


def _is_rounding(term: _Term, decimal: Any, value: Any) -> bool:
    """Return True if `term`, evaluated to `decimal`, is the irrational `value` rounded."""
    numeral = term.numeral(_fraction(decimal)) if decimal.is_Rational and value.is_number else ""
    number = value.evalf(len(numeral) + EXACT_DIGITS) if numeral else None
    return isinstance(number, sympy.Float) and is_rounded(
        numeral, _fraction(decimal), _fraction(sympy.Rational(number))
    )


def _fraction(number: Any) -> Fraction:
    return Fraction(number.p, number.q)


def _is_zero(difference: Any) -> bool:
    if difference.has(sympy.oo, -sympy.oo, sympy.zoo, sympy.nan):
        return False
    if not difference.is_number:
        return sympy.simplify(difference).is_zero is True
    terms = sum(abs(term.evalf(EXACT_DIGITS)) for term in sympy.Add.make_args(difference))
    return bool(abs(difference.evalf(EXACT_DIGITS)) * 10**EXACT_DIGITS <= terms)
