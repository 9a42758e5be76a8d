r"""Reads numbers as people and models write them: exactly, without guessing.

It reads `1,234`, `$1,234.00`, `1.5e3`, `½`, `3/4`, `3 1/2`, `\frac{3}{4}`, `**42**`, `\(42\)`, `−7`, `42.`,
`42 km/h`, `42%`, `x = 42`, `1 234`, `<42>` and `42 (six times seven)`. Ambiguous texts are no numbers: `3 or 4`,
`12 34`, `12,34`, `0,5`, `5 million`, `3-4`, `5:30`.

    read_number("$1,234.50 per month")  # Fraction(2469, 2)
"""

from __future__ import annotations

import collections
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from hone.environments.parsers import FORMS, Ambiguous, AnswerParser, Parser, visible_text
from hone.grading.decimals import DECIMAL, same_rational

MAX_CHARS = 200
"""Longer text is no number."""
MAX_EXPONENT = 300

_VULGAR = "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
_CHARACTERS = str.maketrans({"−": "-", "–": "-", "⁄": "/"} | dict.fromkeys('€£¥₹`"“”', " "))
# In LaTeX 1{,}234 and 1,\!234 are how a thousands comma is set.
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!)(?=[0-9])")
# With a space, groups of exactly three digits are thousands: not in running text, where two numbers may meet.
_SPACED = re.compile(rf"(?<![\w.,^/])[0-9]{{1,3}}(?:[\s~][0-9]{{3}})+(?![0-9]|[\s~]*[/0-9{_VULGAR}])")
_ENCLOSED = re.compile(r"\s*(?:<([^<>]*)>|\(([^()]*)\)|\[([^][]*)\])[\s.]*")
_FRACTION = re.compile(r"(-?)\\[dt]?frac\s*\{\s*(-?[0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_DOLLAR = re.compile(r"-\s?\\?\$\s?(?=[0-9.])")
# LaTeX and Markdown around a number become a space, so that digits never grow together: 4**2 is not 42.
_WRAPPING = re.compile(
    r"\\(?:boxed|underline|emph|text|text(?:bf|it)|math(?:rm|bf)|displaystyle|left|right|q?quad|implies|therefore"
    r"|[Rr]ightarrow)(?![A-Za-z])"
    r"|\^\s?\{?\\circ(?![A-Za-z])|\\[()\[\],;:! ]|__|[*{}]|(?:\bUS)?\\?\$|\b(?:USD|EUR|GBP)\b"
)

_BLOB = re.compile(
    rf"(?<!\w)(?:\.(?=[0-9])|[0-9{_VULGAR}])"
    rf"(?:[0-9{_VULGAR}]|[.,:](?=[0-9])|\s?/\s?(?=[0-9])|\s?(?=[{_VULGAR}])|[^\S\n]{{1,3}}(?=[0-9]{{1,20}}\s?/\s?[0-9])"
    r"|[eE][+-]?(?=[0-9]))*"
)
_WHOLE = "[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+"
_DECIMAL = re.compile(rf"((?:{_WHOLE})?(?:\.[0-9]+)?)(?:[eE]([+-]?[0-9]{{1,4}}))?")
_QUOTIENT = re.compile(rf"({_WHOLE})\s?/\s?({_WHOLE})")
_VULGAR_MIXED = re.compile(rf"([0-9]*)\s?([{_VULGAR}])")
# A numerator of three digits may be thousands: 1 234/567.
_MIXED = re.compile(rf"({_WHOLE})\s{{1,3}}(?![0-9]{{3}}\s?/)([1-9][0-9]*)\s?/\s?([1-9][0-9]*)")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_PERCENT = re.compile(r"\s*(?:\\?%|per ?cent\b)")
# Directly after a number these make another one of it, or none: 5², 5!, 5..., 5k, 5M, 2x4, 5x, 5‰.
_CHANGED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ^!?√π‰+…]|\.\.|[A-Za-z]+[0-9]|[kKMBTbceijnopqrtuvwxyz](?![A-Za-z])|(?:bn|mn|mil)\b")
# Before a number, likewise: x^2, √2, \sqrt{2}, minus 5, - 5 (which may be a bullet).
_UNCLEAR = re.compile(r"(?:[\^√]|\\[A-Za-z]+|\b(?:minus|negative)|-\s)\s*\Z", re.IGNORECASE)
_SCALE = (
    "half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|tenths?|hundred(?:th)?s?|"
    "thousand(?:th)?s?|million(?:th)?s?|billion(?:th)?s?|trillions?|dozens?|squared|cubed|factorial|pi|plus|minus|divided"
)
_WORDS = (
    "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|"
    "(?:twen|thir|for|fif|six|seven|eigh|nine)ty"
)
_SCALED = re.compile(rf"[\s-]*(?:{_SCALE})\b|[\s\w]{{0,30}}\band (?:an?|{_WORDS}|{_SCALE})\b", re.IGNORECASE)
_DOUBT = re.compile(rf"\b(?:or|not|isn|wrong|incorrect|{_SCALE}|{_WORDS})\b", re.IGNORECASE)
_AREA = re.compile(r"(?<![A-Za-z])((?:[kcdm]?m|ft|feet|in|inch|inches|yd|yards?|miles?)) ?\^ ?[23]\b")
_DIGIT_OF_UNIT = re.compile(r"(?<=m)[23]\b")
_UNIT = re.compile(r"(?:[^\W\d_]|[\s.,;:!'’/°²³·-])*")
_PREFIX = re.compile(r"\s*(?:(?:[A-Za-z]\w{0,15}\s*)?=\s*)?")
# Two numbers with this between them are alternatives, a list, a range, or a sum that nobody worked out.
_JOINED = re.compile(
    r"\s*(?:[A-Za-z%°/²³]+\s*){0,2}?(?:[,;]\s*(?:or|and)?|\bor|\band)\s*"
    r"|\s*(?:[-+/×÷·^:~x]|to|times|plus|minus|over|divided by)?\s*",
    re.IGNORECASE,
)
_BEFORE_REMARK = re.compile(r"\s*(?:[A-Za-z%°/²³]+\s*){0,3}")


def read_number(text: str, *, percent: bool = False) -> Fraction | None:
    """Return the number that `text` states, or None for no number or several. If `percent`, `42%` is 42/100."""
    stated = _stated(text)
    return stated and stated.read(percent)


def same_number(given: str | None, gold: str) -> bool:
    """Compare two numbers by the rule of `hone.grading.decimals`. Percent signs count if `gold` has a percent sign."""
    one, other = _stated(given or ""), _stated(gold)
    if one is None or other is None:
        return False
    value, right = one.read("%" in gold), other.read("%" in gold)
    return value is not None and right is not None and same_rational(value, right, one.decimal, other.decimal)


def find_number(text: str, *, percent: bool = False) -> Fraction | None:
    """Read like `read_number`, but raise `Ambiguous` for text that may state several numbers."""
    found = _find(text)
    return found and found.read(percent)


def _stated(text: str) -> _Numeral | None:
    try:
        return _find(text)
    except Ambiguous:
        return None


def _find(text: str) -> _Numeral | None:
    if len(text) > MAX_CHARS:
        return None
    text = _SPACED.sub(lambda match: re.sub(r"[\s~]", "", match[0]), _clean(text))
    if enclosed := _ENCLOSED.fullmatch(text):
        text = " ".join(filter(None, enclosed.groups()))
    numerals = _numerals(text)
    if not numerals or not _PREFIX.fullmatch(text, 0, numerals[0].start):
        return None
    bracket = re.compile(r"[(\[]").search(text, numerals[0].end)
    end = bracket.start() if bracket else len(text)
    stated = [numeral for numeral in numerals if numeral.start < end]
    last, count = _last(text, stated)
    rest = _DIGIT_OF_UNIT.sub("", text[last.end : end])
    if count < len(stated) or not _UNIT.fullmatch(rest):
        return None
    if _DOUBT.search(rest) or (bracket and _differs(text[end:], numerals[len(stated) :], last)):
        raise Ambiguous(text)
    return last


class NumberParser(AnswerParser[Fraction]):
    """The answer is the last number in one of `forms`. `("marker",)` accepts only `ANSWER: {number}`."""

    def __init__(self, forms: Sequence[str] = FORMS) -> None:
        expects = "a number after ANSWER:" if tuple(forms) == ("marker",) else "a number as the answer"
        super().__init__(find_number, forms, expects)


class LastNumberParser(Parser):
    """The answer is the last number anywhere in the text; None if that number is ambiguous."""

    expects = "a number"

    def parse(self, text: str) -> str | None:
        text = _clean(visible_text(text))
        numerals = _numerals(text)
        try:
            while numerals:
                opened = max(text.rfind("(", 0, numerals[-1].start), text.rfind("[", 0, numerals[-1].start))
                outside = [numeral for numeral in numerals if numeral.end <= opened]
                closed = opened < 0 or any(c in text[opened : numerals[-1].start] for c in ")]")
                if closed or not outside or not _BEFORE_REMARK.fullmatch(text[outside[-1].end : opened][:80]):
                    break
                if _differs(text[opened:], numerals[-1:], outside[-1]):
                    return None
                numerals = outside
            return _last(text, numerals)[0].text if numerals else None
        except Ambiguous:
            return None


@dataclass(frozen=True)
class _Numeral:
    """A number in `text[start:end]`, with its sign and percent sign. `value` is None for an ambiguous number."""

    start: int
    end: int
    text: str
    value: Fraction | None
    in_percent: bool

    @property
    def decimal(self) -> str:
        """The digits with the point; "" if the number has no point."""
        written = DECIMAL.search(self.text)
        return written[0] if written else ""

    def read(self, percent: bool) -> Fraction | None:
        return self.value / 100 if percent and self.in_percent and self.value is not None else self.value


def _clean(text: str) -> str:
    text = visible_text(text).translate(_CHARACTERS)
    text = _DOLLAR.sub("-", _THOUSANDS.sub(",", text))
    text = _FRACTION.sub(r" \1\2/\3 ", text)
    return _AREA.sub(r"\1", _WRAPPING.sub(" ", text))


def _numerals(text: str) -> list[_Numeral]:
    """Return the last (at most 64) numbers in clean text. Digits in a word (H2O) and ordinals (4th) don't count."""
    found = []
    for match in collections.deque(_BLOB.finditer(text), maxlen=64):
        start, end = match.span()
        if _ORDINAL.match(text, end):
            continue
        value = _value(match.group())
        if _CHANGED.match(text, end) or _UNCLEAR.search(text, max(0, start - 20), start):
            value = None
        if start and text[start - 1] in "+-":
            signed = start == 1 or text[start - 2] in " \t\n=(:,;"
            start -= 1
            value = None if value is None or not signed else -value if text[start] == "-" else value
        percent = _PERCENT.match(text, end)
        end = percent.end() if percent else end
        numeral = text[start:end]
        found.append(_Numeral(start, end, numeral, value, percent is not None))
    return found


def _value(blob: str) -> Fraction | None:
    if len(blob) > MAX_CHARS:
        return None
    if match := _VULGAR_MIXED.fullmatch(blob):
        whole, part = match.groups()
        return int(whole or 0) + Fraction(unicodedata.numeric(part)).limit_denominator(10)
    blob = blob.strip()
    if match := _MIXED.fullmatch(blob):
        whole, above, below = (int(part.replace(",", "")) for part in match.groups())
        return whole + Fraction(above, below) if above < below else None
    if match := _QUOTIENT.fullmatch(blob):
        above, below = (int(part.replace(",", "")) for part in match.groups())
        return Fraction(above, below) if below else None
    match = _DECIMAL.fullmatch(blob)
    if match is None or abs(int(match[2] or 0)) > MAX_EXPONENT:
        return None
    return Fraction(match[1].replace(",", "")) * Fraction(10) ** int(match[2] or 0)


def _last(text: str, numerals: Sequence[_Numeral]) -> tuple[_Numeral, int]:
    """Return the last number and how often it is repeated ("3 or 3": 2). Raises Ambiguous for "3 or 4"."""
    last, count = numerals[-1], 1
    if last.value is None or _SCALED.match(text, last.end):
        raise Ambiguous(last.text)
    while count < len(numerals):
        left, right = numerals[-count - 1], numerals[-count]
        if right.start - left.end > 60 or not _JOINED.fullmatch(text, left.end, right.start):
            break
        if (left.value, left.in_percent) != (last.value, last.in_percent):
            raise Ambiguous(text[left.start : last.end])
        count += 1
    return last, count


def _differs(remark: str, inside: Sequence[_Numeral], stated: _Numeral) -> bool:
    """Return True if a remark offers another number instead: "42 (or 43)"."""
    alternative = re.match(r"[(\[]\s*(?:or|maybe|perhaps|possibly)\b", remark, re.IGNORECASE)
    return alternative is not None and any(numeral.value != stated.value for numeral in inside)
