r"""Compare two pieces of mathematics: LaTeX, fractions, sets, intervals, matrices, words.

math-verify parses both texts and `math_worker.py` compares them. math-verify's own time limit uses SIGALRM: it works
only on the main thread, can't stop C code, and its timeout means "different". So hone compares in the grading process
or a separate process. The kernel limits its processor time: \binom{999999999}{499999999} is stopped after 5 seconds.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

from hone.errors import UserError
from hone.grading.inline import GraderFailure, describe_exception, inside
from hone.grading.pool import NoVerdict, Worker
from hone.types import Outcome

LONGEST = 512
"""Maximum characters of an answer. A longer answer counts as unreadable."""
CPU_SECONDS = 5
CLOCK_SECONDS = 60.0
"""Limit of wall time. It ends a worker that waits and so uses no processor time."""

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_WORD = re.compile(r"[^\W\d_]+")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s-]+[^\W\d_]+)*")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_BASE = re.compile(r"\d\s*_\s*\{?\s*(\d+)\s*\}?$")
_PARTED = re.compile(r"(?<![\\\w])\d+\s+\d")
_POWERS = re.compile(r"\d+(?:[\s})]*(?:\^|\*\*)[\s{(]*\d+)+")
_FACTORIAL = re.compile(r"(\d+)\s*!")
_SEPARATOR = r"(?:(?:\\[,;:! ]|~|\{,\}|,\\!)\s?|\s)"
_THOUSANDS = re.compile(rf"(?<![\w.,^\\])\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d|\s*/|{_SEPARATOR}\d)")
# A numerator of three digits before a slash may be thousands: 1 234/567.
_MIXED = re.compile(
    r"(?<![\w.,^/\\])(?<!\d\s)(\d+)(?:\s+(?!\d{3}\s*/)([1-9]\d*)\s*/\s*([1-9]\d*)(?![\w/^!]|[.,]\d|\s*\d)"
    r"|\s*\\frac\s*\{([1-9]\d*)\}\s*\{([1-9]\d*)\})"
)
_RATIO = re.compile(r"(?:[^\W\d_][^=<>]*=)?((?:[^:=<>|\\]|\\(?![{}]))+(?::(?:[^:=<>|\\]|\\(?![{}]))+)+)")
_POINT = re.compile(r"(?<![\w.,])\d+\.\d+(?![\w,]|\.\d)")
# Before exactly three digits it parts thousands, in brackets the coordinates of a point.
_COMMA = re.compile(r"(?<![\w.,(\[{])\d+,(?!\d{3}(?!\d))\d+(?!\d|[.,]\d|,|\s*\\?[)\]}])")
_LARGEST = 10_000
"""Larger exponents, and factorials of larger numbers, would take too long to compute."""
_COMMAND = re.compile(r"\\[A-Za-z]+")
_MOST_LETTERS = 24
_QUOTED = re.compile(r"(?<![\w)}'])(['\"])[^'\"]+\1")


def same(answer: str, gold: str) -> bool | GraderFailure | None:
    """Return True if `answer` equals `gold`, None if the answer can't be read, a failure if the comparison fails.

    Identical texts are equal. A comma is a decimal point if the other text has the same digits with a point. Words
    (`\\text{Evelyn}`, `Evelyn`) are compared as text, without case. An answer with a base (`12_{8}`) differs from a
    `gold` without this base. Raises UserError if math-verify is not installed.
    """
    answer, gold = tidy(answer), tidy(gold)
    if answer and answer == gold:
        return True
    if not readable(answer):
        return None
    answer, gold = _pointed(answer, gold), _pointed(gold, answer)
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return int(answer) == int(gold)
    same_words = _plain(answer).lower() == _plain(gold).lower()
    if _is_words(answer) or _is_words(gold) or (same_words and _TEXT.search(gold)):
        return same_words
    if "=" in answer and len({side.strip() for side in answer.split("=")}) == 1:
        return False  # 0 = 0 states nothing
    base = _BASE.search(answer)
    if base and base.groups() != getattr(_BASE.search(gold), "groups", tuple)():
        return False
    if _is_prose(answer) and not _is_prose(gold):
        return False
    try:
        return _same_ratio(answer, gold)
    except NoVerdict as nothing:
        return nothing.failure


def _same_ratio(answer: str, gold: str) -> bool | None:
    """Compare ratios by their quotients, and other texts as they are. A quotient may answer a ratio of two terms."""
    terms, gold_terms = (
        [] if match is None else match[1].split(":") for match in map(_RATIO.fullmatch, (answer, gold))
    )
    if len(terms) != len(gold_terms) and (terms or len(gold_terms) > 2):
        return False
    if len(terms) < 3:
        return _verdict(answer, gold)
    quotients = zip(terms[1:], gold_terms[1:], strict=True)
    return all(_verdict(f"{one}:{terms[0]}", f"{other}:{gold_terms[0]}") for one, other in quotients)


def readable(text: str) -> bool:
    """Return True if `text` may be mathematics.

    It must not be empty or too long. Its braces must be balanced, and spaces between digits must separate thousands. It
    must have no quoted string, and no power or factorial that is too large to compute.
    """
    text = tidy(text)
    if not 0 < len(text) <= LONGEST or _PARTED.search(text) or not balanced(text):
        return False
    quoted = _QUOTED.search(text)
    return (quoted is None or quoted[0] == text) and not _is_endless(text)


def _is_endless(text: str) -> bool:
    """Return True if the value of `text` has too many digits to compute: `9^{9^{9}}`, `99999!`."""
    powers = [[int(number[:9]) for number in re.findall(r"\d+", chain[0])] for chain in _POWERS.finditer(text)]
    values = [int(match[1][:9]) for match in _FACTORIAL.finditer(text)]
    for base, *exponents in powers:
        exponent = 1
        for number in reversed(exponents):
            exponent = _power(number, exponent)
        if base > 1 and exponent > _LARGEST:
            return True
        values += [_power(base, exponent)] * ("!" in text)
    return any(value > _LARGEST for value in values)


def _power(base: int, exponent: int) -> int:
    """Compute `base ** exponent`; if it is too large, return any number above `_LARGEST`."""
    return base if base < 2 else base ** min(exponent, 30) if exponent else 1


def balanced(text: str) -> bool:
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def tidy(text: str) -> str:
    """Remove delimiters, bold, spacing commands, repeated white space, spaces in numbers, and the final full stop."""
    text = text.replace("−", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = re.sub(r"\\left(?![a-z])|\\right(?![a-z])", "", text)
    text = _THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), text)
    text = text.replace("{,}", ",")
    text = re.sub(r"\\[,!;:]", " ", text)
    text = _MIXED.sub(_mixed, "".join(map(_spelled, text)))
    text = " ".join(text.split()).rstrip(".").strip()
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**")):
        if text.startswith(left) and text.endswith(right) and len(text) > len(left + right):
            text = text[len(left) : -len(right)].strip()
    return text.rstrip(".").strip()


def _pointed(text: str, other: str) -> str:
    """Replace each comma in `text` by a point if `other` has the same decimal with a point."""
    decimals = {number.rstrip("0") for number in _POINT.findall(other)}
    return _COMMA.sub(
        lambda match: pointed if (pointed := match[0].replace(",", ".")).rstrip("0") in decimals else match[0], text
    )


def _mixed(match: re.Match[str]) -> str:
    """Return a mixed number such as `3 2/3` as a fraction; leave `3 3/2` unchanged."""
    whole, above, below = (int(digits) for digits in match.groups() if digits)
    return f"\\frac{{{whole * below + above}}}{{{below}}}" if above < below else match[0]


def _spelled(char: str) -> str:
    if not unicodedata.decomposition(char).startswith("<fraction>"):
        return char
    above, below = unicodedata.normalize("NFKC", char).split("⁄")
    return f"\\frac{{{above}}}{{{below}}}"


def _is_words(text: str) -> bool:
    """Return True if `text` is words. Outside a LaTeX text command, a word needs four letters: `xy` is a product."""
    words = _WORD.findall(_plain(text)) if _WORDS.fullmatch(_plain(text)) else []
    return any(len(word) > 3 for word in words) or (bool(words) and bool(_TEXT.search(text)))


def _is_prose(text: str) -> bool:
    """Return True if `text` has too many letters for a formula. Parsing them as a product would take seconds."""
    return len(re.findall(r"[^\W\d_]", _COMMAND.sub(" ", _TEXT.sub(" ", text)))) > _MOST_LETTERS


def _plain(text: str) -> str:
    return " ".join(_TEXT.sub(r"\1", text).strip(" ()").split())


@functools.lru_cache(maxsize=2**16)
def _verdict(answer: str, gold: str) -> bool | None:
    """Return `math_worker`'s verdict, and cache it. Raises NoVerdict, which is not cached."""
    if not inside():
        return _worker().ask([answer, gold], CPU_SECONDS, CLOCK_SECONDS)
    try:
        return _right_here()([answer, gold])
    except Exception as error:
        raise NoVerdict(GraderFailure(Outcome.GRADER_ERROR, describe_exception(error))) from None


@functools.cache
def _right_here() -> Callable[[list[str]], bool | None]:
    _check_installed()
    from hone.grading import math_worker

    return math_worker.start()


@functools.cache
def _worker() -> Worker:
    _check_installed()
    return Worker(Path(__file__).with_name("math_worker.py"), [], "comparing the answer")


def _check_installed() -> None:
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("this task needs math-verify, which is not installed: pip install 'math-verify>=0.9,<0.10'")


if inside():
    _right_here()  # the import must not cost the first question's time
