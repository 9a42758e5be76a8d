"""Compares rational numbers, for all graders of numbers and mathematics.

Two numbers must be exactly equal, with one exception: a decimal of at least six significant digits also equals a
fraction that rounds to it and has no finite decimal. So `0.333333` equals 1/3, but `0.33333` and `0.333334` do not.
"""

from __future__ import annotations

import re
from fractions import Fraction

LEAST_DIGITS = 6
"""A decimal needs this many significant digits to stand for a number that rounds to it."""
DECIMAL = re.compile(r"[0-9,]*\.[0-9]+")


def same_rational(one: Fraction, other: Fraction, one_numeral: str = "", other_numeral: str = "") -> bool:
    """Return True if the numbers are equal, or one number is the other number rounded.

    `one_numeral` and `other_numeral` are the decimals as written, without sign, exponent and percent sign; "" for a
    number that was not written as a decimal.
    """
    return (
        one == other
        or (not _is_finite(other) and is_rounded(one_numeral, one, other))
        or (not _is_finite(one) and is_rounded(other_numeral, other, one))
    )


def is_rounded(numeral: str, decimal: Fraction, value: Fraction) -> bool:
    """Return True if `numeral` has enough digits, and its value `decimal` is `value` rounded to these digits."""
    digits = re.sub(r"[,.]", "", numeral).lstrip("0")
    last_digit = abs(decimal) / int(digits or 1)
    return len(digits) >= LEAST_DIGITS and 2 * abs(decimal - value) <= last_digit


def _is_finite(value: Fraction) -> bool:
    return pow(10, value.denominator.bit_length(), value.denominator) == 0
