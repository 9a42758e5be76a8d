r"""Where a generous reader finds an answer in a completion, whatever the task asks for.

There are four kinds of places: a tag (`<answer>…</answer>`, or one that was left open or not opened), a box
(`\boxed{…}`), a statement (`the answer is …`, `x = …`), and the end (the last number, or the last line). Only the last
place of each kind counts, so a text that lists many answers has four at most, and a place that holds several answers
has none: guessing pays no more than saying one. Where the answer is one of few (a letter, yes or no), only the most
telling place counts.

    candidates("I get <answer>42", Kind.NUMBER)  # {"tag": "42", "end": "42"} without the repeat: {"tag": "42"}

What was thought (`<think>…</think>`) is no answer.
"""

from __future__ import annotations

import re

from hone.audit.answers import OPPOSITES, Kind
from hone.environments.numbers import read_number
from hone.environments.parsers import visible_text

LONGEST = 2_000
"""Characters of an answer; a longer one is none."""
END = 4 * LONGEST
"""Characters at the end of a text that are looked at, so that whatever a model wrote is read in some milliseconds."""
TEXTS = (Kind.TEXT, Kind.EXACT, Kind.UNKNOWN)
_THOUGHTS = "think|thinking|reasoning|thought|scratchpad"
_TAG = re.compile(rf"<(/?)(?!(?:{_THOUGHTS})>)([A-Za-z]\w*)>")
_OPEN = re.compile(rf"<(?!(?:{_THOUGHTS})>)([A-Za-z]\w*)>([^<]*)\Z")
_UNOPENED = re.compile(rf"\A([^<]*)</(?!(?:{_THOUGHTS})>)[A-Za-z]\w*>")
_TAGS = re.compile(r"</?[A-Za-z]\w*>?")
_BOX = re.compile(r"\\boxed\s*\{")
_STATED = re.compile(
    r"\b(?:answer|result|solution|total|value|word|number)\b[\s*_]*(?:is|are|was|be|equals|:|=)[\s:]*([^\n]*)"
    r"|=\s*(?=\S)([^=\n]+?)(?=$|\n|[.,;]\s)",
    re.IGNORECASE,
)
_MARKED = re.compile(r"\banswer\b[\s*_]*(?:is|are|be|:|=)[\s:]*([^\n]*)", re.IGNORECASE)
_NUMBER = re.compile(
    r"-?\\[dt]?frac\s*\{\d+\}\s*\{\d+\}|(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s?/\s?\d+)?(?!\d)"
    r"|(?<![\w.])-?\.\d+"
)
_OPERAND = r"[-(\s]*+\d++[)\s]*+"
_EXPRESSION = re.compile(rf"(?<!\d){_OPERAND}(?:(?:[-+*/×÷−·]|\\times|\\cdot|\\div){_OPERAND})+")
_WORD = re.compile(r"[^\W\d_]+")
_LETTER = re.compile(r"(?<![^\W_])\(?[a-z]\)?(?![^\W_])")
_CAPITAL = re.compile(r"(?<![^\W_])(?!I(?:['’]|\s+[a-z]))\(?[A-Z]\)?(?![^\W_])")
_PARTED = re.compile(r"(?<!\d)\d++(?:[-/.:–]\d++)+")
_EMPHASIS = re.compile(r"""(?:\*\*|["“'‘`])([^\W\d_]+)(?:\*\*|["”'’`])""")
_CLAUSE = re.compile(r"[.,;:!?\n]|\b(?:because|since|as)\b")
_QUOTED = re.compile(r"""\s*(?:\*\*|["“'‘`])(.+?)(?:\*\*|["”'’`])[.!]?\s*""", re.DOTALL)
_MATH = re.compile(r"\$([^$\n]+)\$|\\\(((?:(?!\\[()]).)+)\\\)")


def candidates(text: str, kind: Kind, like: str = "") -> dict[str, str]:
    """Answers by the kind of place they stand in, the more telling place first, none twice.

    `kind` is what the task's answers are, which decides what of a place is the answer; `like` is one of them, by whose
    form a word is told from the letter of a choice and from a date.
    """
    text = visible_text(text)[-END:]
    places = {"tag": _tagged(text), "box": _boxed(text), "statement": _stated(text, kind), "end": text}
    found: dict[str, str] = {}
    for name, place in places.items():
        answer = None if place is None else (_at_end if name == "end" else _in_place)(place, kind, like)
        answer = answer.strip() if answer else ""
        if answer and len(answer) <= LONGEST and answer not in found.values():
            found[name] = answer
            if kind is Kind.WORD and one_of_few(like):  # to name several would be to guess
                break
    return found


def one_of_few(answer: str) -> bool:
    """Whether this is an answer that one may well guess: the letter of a choice, yes or no."""
    word = answer.strip("()").lower()
    return (len(word) == 1 and word.isalpha()) or any(word in pair for pair in OPPOSITES)


def _tagged(text: str) -> str | None:
    """What stands in the last pair of tags; else after one that nothing closed, or before one that nothing opened."""
    opened: dict[str, int] = {}
    pair = None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened[tag[2]] = tag.end()
        elif (start := opened.pop(tag[2], -1)) >= 0 and text[start : tag.start()].strip():
            pair = text[start : tag.start()]
    if pair is not None:
        return pair
    match = _OPEN.search(text)
    if match:
        return match[2]
    match = _UNOPENED.search(text)
    return match[1] if match else None


def _boxed(text: str) -> str | None:
    r"""What the last `\boxed{}` holds, its braces balanced; to the end of its line if it was not closed."""
    starts = [match.end() for match in _BOX.finditer(text)]
    if not starts:
        return None
    depth = 1
    for at in range(starts[-1], len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if depth == 0:
            return text[starts[-1] : at]
    return text[starts[-1] :].split("\n", 1)[0]


def _stated(text: str, kind: Kind) -> str | None:
    """What the last statement says. Of arithmetic and text an equals sign states nothing."""
    plain = kind is Kind.EXPRESSION or kind in TEXTS or kind is Kind.WORD
    matches = list((_MARKED if plain else _STATED).finditer(text))
    if not matches:
        return None
    last = matches[-1]
    return next((group for group in last.groups() if group is not None), None)


def _in_place(place: str, kind: Kind, like: str) -> str | None:
    """The one answer of this kind that a marked place holds; None if it holds none, or several."""
    if len(place) > LONGEST:
        return None
    if kind in TEXTS:
        match = _QUOTED.fullmatch(place)
        return match[1] if match else _without_markup(place).strip()
    place = _without_markup(place)
    if kind is Kind.NUMBER:
        stated = place.rpartition("=")[2]
        return _only(_NUMBER, stated) or (stated if read_number(stated) is not None else None)
    if kind is Kind.EXPRESSION:
        return _balanced(_only(_EXPRESSION, place))
    if kind is Kind.WORD:
        return _word(place, like)
    return place.strip().strip("$").rstrip(".").strip()


def _at_end(text: str, kind: Kind, like: str) -> str | None:
    """The last answer of this kind in the text."""
    lines = [line for line in _without_markup(text).splitlines() if line.strip()]
    if not lines:
        return None
    if kind in TEXTS:
        return lines[-1]
    if kind is Kind.MATH:
        segments = [next(g for g in match.groups() if g is not None) for match in _MATH.finditer(text)]
        return segments[-1] if segments else lines[-1].rpartition("=")[2].rstrip(". ")
    pattern = {Kind.NUMBER: _NUMBER, Kind.EXPRESSION: _EXPRESSION}.get(kind) or _pattern_of(like)
    matches = [match.group() for match in pattern.finditer(text)]
    return _balanced(matches[-1]) if matches else None


def _balanced(expression: str | None) -> str | None:
    """Without brackets at its ends that belong to the text around it."""
    text = (expression or "").strip()
    while text.count(")") > text.count("(") and text.endswith(")"):
        text = text[:-1].rstrip()
    while text.count("(") > text.count(")") and text.startswith("("):
        text = text[1:].lstrip()
    return text or None


def _word(place: str, like: str) -> str | None:
    pattern = _pattern_of(like)
    if pattern is not _WORD:
        return _only(pattern, place)
    emphasised = set(_EMPHASIS.findall(place))
    if len(emphasised) == 1:
        return emphasised.pop()
    words = _WORD.findall(next((part for part in _CLAUSE.split(place) if part.strip()), ""))
    return None if not words or {"or", "and"} & {word.lower() for word in words} else words[-1]


def _pattern_of(like: str) -> re.Pattern[str]:
    """What an answer such as `like` looks like: the letter of a choice, a date or a time, a word."""
    letter = like.strip("()")
    if len(letter) == 1 and letter.isalpha():
        return _CAPITAL if letter.isupper() else _LETTER
    return _PARTED if _PARTED.search(like) else _WORD


def _only(pattern: re.Pattern[str], place: str) -> str | None:
    """The one match; None if there is none, or several that differ."""
    found = {match.group().strip() for match in pattern.finditer(place)}
    return found.pop() if len(found) == 1 else None


def _without_markup(text: str) -> str:
    """The text without tags and emphasis."""
    return _TAGS.sub(" ", text).replace("**", "")
