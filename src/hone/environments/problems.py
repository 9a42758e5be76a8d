"""Shared parts of question-and-answer tasks: columns, splits, mathematics as answers; and word problems from a seed.

A word problem has the form of GSM8K: everyday arithmetic in two to four steps. Its answer tells the steps, with each
calculation as `<<12*3=36>>36`, and ends in a line `#### 36`.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hone.environments.data import DataSource, Row, Rows, generated_rows, hold_out, train_and_eval
from hone.environments.numbers import find_number, same_number
from hone.environments.parsers import REMARK, Ambiguous, AnswerParser
from hone.grading import GraderFailure
from hone.grading.math import readable, same
from hone.types import Message

PROBLEMS = (
    (r"What is $\frac{3}{4} - \frac{1}{3}$?", r"\frac{5}{12}"),
    (r"Which polynomial $x^2 + bx + c$ has the roots 2 and 3?", "x^2 - 5x + 6"),
    (r"For which real $x$ is $2x + 1 < 7$? Give an interval.", r"(-\infty, 3)"),
    (r"How long is the diagonal of a square with side 6?", r"6\sqrt{2}"),
    (r"Find all real $x$ with $x^2 = 49$.", "-7, 7"),
    (r"A fair coin is tossed three times. How likely are exactly two heads?", r"\frac{3}{8}"),
    (r"Where do the lines $y = 2x$ and $y = x + 3$ meet? Give a point.", "(3, 6)"),
    (r"What is the area of a circle with diameter 10?", r"25\pi"),
    (r"Write $1 + 2 + \dots + n$ without a sum.", r"\frac{n(n+1)}{2}"),
    (r"Compute $(2 + i)(3 - 2i)$.", "8 - i"),
    (r"How many divisors has 360?", "24"),
    (r"What is $\log_2 32$?", "5"),
)
"""Problems of our own: two of three for training, the others for evaluation."""
MATH_HINT = r"Reason step by step, and put your final answer within \boxed{}."
_LATEX = re.compile(r"\\(?:text\w*|mathrm|mathbf|mbox)\s*\{[^{}]*\}|\\[A-Za-z]+")
_SYMBOL = re.compile(r"[\d\\+=<>^|π∞√]|\A\W*[^\W\d_]{1,3}\W*\Z")
_FUNCTIONS = "sqrt|sinh|cosh|tanh|arcsin|arccos|arctan|infty|infinity|units?|degrees?"
_PROSE = re.compile(
    rf"(?!(?:{_FUNCTIONS})\b)[^\W\d_]{{4,}}"
    r"|(?<![^\W\d_])(?:the|is|it|its|of|in|to|we|as|at|be|by|if|no|not|my|so|was|are|for|you|can|but|has|how|all|any|one|two"
    r"|box|see|yes|our|out|up|on|do|now|per|than)(?![^\W\d_])",
    re.IGNORECASE,
)
QUESTION = ("problem", "question", "prompt")


def question_of(row: Row) -> str:
    """Return the text of the question: of a `prompt` of messages, what the user says last. KeyError without one."""
    given = next((row[name] for name in QUESTION if row.get(name)), None)
    if isinstance(given, list):
        asked = [m for m in given if isinstance(m, dict) and m.get("role") == "user"]
        given = asked[-1].get("content") if asked else None
    if not isinstance(given, str) or not given.strip():
        raise KeyError(next((name for name in QUESTION if name in row), QUESTION[0]))
    return given.strip()


def answer_of(row: Row) -> str:
    """Return the right answer: the column `answer`, else the last box of `solution`. KeyError without one."""
    answer = row.get("answer")
    if answer is None and row.get("solution"):
        answer = AnswerParser(forms=("boxed",)).parse(str(row["solution"]))
    if answer is None or not str(answer).strip():
        raise KeyError("answer")
    return str(answer).strip()


def prompt_of(row: Row, hint: str) -> str | list[Message]:
    """Return the prompt: messages as the row has them, or the question and, in a line of its own, the hint."""
    messages = row.get("prompt")
    return messages if isinstance(messages, list) else f"{question_of(row)}\n{hint}".strip()


def splits(
    dataset: str | None, eval_dataset: str | None, dataset_split: str, eval_split: str, own: Callable[[str], Rows]
) -> dict[str, DataSource | None]:
    """Return what `train_and_eval` does, with a tenth of the questions held out.

    But `eval_dataset` alone leaves nothing to train on.
    """
    made = train_and_eval(
        dataset, eval_dataset, dataset_split, eval_split, lambda rows: hold_out(rows, question_of), own
    )
    return made | ({"dataset": None} if eval_dataset and not dataset else {})


def own_problems(split: str) -> Rows:
    """Return the problems of our own of a split."""
    rows = [{"problem": problem, "answer": answer} for problem, answer in PROBLEMS]
    chosen = [i for i in range(len(rows)) if (i % 3 == 2) == (split == "eval")]
    return Rows(rows, lambda i: f"problem {i} of hone's own").take(chosen)


class MathParser(AnswerParser[str]):
    r"""The answer is the last `\boxed{…}`, `<answer>` pair or `ANSWER:` that math-verify may be able to read.

    After `ANSWER:` mathematics is expected: prose there is read only if there is no other answer, and so is mathematics
    after `the answer is`.
    """

    def __init__(self) -> None:
        forms = ("boxed", "tag", "marker", "sentence")
        super().__init__(_readable, forms, r"a \boxed{…} answer", _formula)

    def parse(self, text: str) -> str | None:
        """Return the answer as `value` has it: of a line without the Markdown around it."""
        return self.value(text)


def _readable(text: str) -> str | None:
    return text if readable(text) else None


def _formula(line: str) -> str | None:
    """Return the line if it is a number, with a unit or without, or a formula; a box in it is read instead.

    Raises Ambiguous for `3 or 4 apples`.
    """
    line = re.sub(r"(?:\*\*|__|`|\$\$|\\\])+(?=[.\s]*\Z)", "", line).strip()
    if r"\boxed" in line:
        return None
    try:
        number = find_number(line)
    except Ambiguous:
        if REMARK.search(line) and not _is_formula(line):
            raise
        return _readable(line)
    return line if number is not None else _readable(line) if _is_formula(line) else None


def _is_formula(text: str) -> bool:
    return bool(_SYMBOL.search(text)) and not _PROSE.search(_LATEX.sub(" ", text))


def correctness(completion: list[Message], answer: str, parser: MathParser) -> float | GraderFailure:
    """Return 1 if the given answer is equal to the right one, else 0; a number may have a unit or a remark.

    A comparison that takes too long gives no reward.
    """
    given = parser.parse_answer(completion)
    bare = not re.search(r"[^\W\d_]", re.sub(r"\\[A-Za-z]+", "", answer))
    if bare and same_number(given, answer):
        return 1.0
    equal = given is not None and same(given, answer)
    return equal if isinstance(equal, GraderFailure) else float(bool(equal))


NAMES = "Ada Ben Chen Dora Emil Fatima Grace Hugo Ines Jonas Kofi Lena Mara Noor"
GOODS = "apples pencils stickers marbles cookies stamps buttons postcards plums candles"
HELD_OUT = 10
"""One of this many sets of numbers belongs to evaluation, by its hash."""
_OPS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}
_RANGE = re.compile(r"(\w+)\.\.(\w+?)(?:x(\d+))?")
_STEP = re.compile(r"{(\w+) = (\w+) ([-+*/]) (\w+)}")
_CHOICE = re.compile(r"{(\w+)\?(\w+):(\w+)}")
_STORIES = """\
boxes: name goods count=3..20 each=4..12 most=count*each-1 sold=1..most
{name} packs {count} boxes with {each} {goods} each and sells {sold} {goods}. How many are left?
> There are {total = count * each} {goods}.
> Of these {left = total - sold} {goods} are left.

savings: name weeks=3..12 weekly=2..15 gift=5..40 missing=1..60 price=weeks*weekly+gift+missing
A bicycle costs ${price}. {name} saves ${weekly} a week for {weeks} weeks and is given ${gift}.
How many dollars does {name} still need?
> {name} saves {saved = weeks * weekly} dollars.
> With the present that makes {owned = saved + gift} dollars.
> So {needed = price - owned} dollars are missing.

journey: name speed=4..18x5 hours=2..6 walk=2..19
{name} takes a bus that drives {speed} kilometres an hour for {hours} hours and then walks {walk} kilometres.
The way back is the same. How many kilometres does {name} travel in all?
> By bus it is {ride = speed * hours} kilometres.
> With the walk it is {way = ride + walk} kilometres.
> There and back it is {both = way * 2} kilometres.

tickets: adults=2..6 children=1..8 price=8..25 discount=2..6
A museum ticket costs ${price} for an adult and ${discount} less for a child.
How many dollars do {adults} adults and {children} {children?child:children} pay together?
> A child pays {child = price - discount} dollars.
> The adults pay {first = adults * price} dollars.
> The children pay {second = children * child} dollars.
> Together they pay {total = first + second} dollars.

sharing: name goods friends=2..8 each=2..12 kept=1..9 total=friends*each+kept
{name} has {total} {goods}, keeps {kept} and shares the rest equally among {friends} friends.
How many {goods} does each friend get?
> {given = total - kept} {goods} are given away.
> Each friend gets {share = given / friends} {goods}.

ages: child=3..15 factor=2..5 years=2..30
A child is {child} years old, and the mother is {factor} times as old.
How old will they be together in {years} years?
> The mother is {parent = child * factor} years old.
> The child will then be {child_then = child + years} years old.
> The mother will then be {parent_then = parent + years} years old.
> Together they will be {total = child_then + parent_then} years old.

discount: name price=1..10x20 percent=1..10x5 count=2..5
A coat costs ${price}. In a sale it is {percent}% cheaper. How many dollars does {name} pay for {count} of them?
> The price times the percentage is {hundredths = price * percent}.
> A hundredth of it, the discount, is {off = hundredths / 100} dollars.
> One coat costs {reduced = price - off} dollars then.
> All of them cost {total = reduced * count} dollars.

book: name pages=8..30 days=3..9 rest=10..60 twice=rest*2 total=pages*days+twice
A book has {total} pages. {name} reads {pages} pages a day for {days} days, and then half of what is left.
How many pages remain?
> {name} reads {read = pages * days} pages on these days.
> Then {left = total - read} pages are left.
> Half of them is {half = left / 2} pages.

farm: cows=4..30 more=1..30 sold=1..2
A farmer has {cows} cows and {more} more hens than cows. Then {sold} of the cows {sold?is:are} sold.
How many legs do the animals have that are left?
> There are {hens = cows + more} hens.
> After the sale {left = cows - sold} cows are left.
> The cows have {cow_legs = left * 4} legs.
> The hens have {hen_legs = hens * 2} legs.
> Together that makes {total = cow_legs + hen_legs} legs.

bakery: size=4..12 packs=5..25 price=2..9 burnt=1..15 baked=size*packs+burnt
A bakery makes {baked} rolls, of which {burnt} {burnt?is:are} burnt. The others are sold in bags of {size}
for ${price} a bag. How many dollars does the bakery take if it sells them all?
> {whole = baked - burnt} rolls are whole.
> They fill {count = whole / size} bags.
> The bags bring in {income = count * price} dollars.
"""
"""Each with its name and its draws (`4..18x5`: a number from 4 to 18, times 5) or works out (from left to right), the
question, and the steps of the solution. `{burnt?is:are}` is one word for 1, and another for more.
"""
STORIES = _STORIES.split("\n\n")


def word_problems(n: int, *, seed: int, env_id: str, split: str) -> Rows:
    """Return `n` rows with `question` and `answer`. No row of "eval" has story and numbers of one of "train"."""
    return generated_rows(lambda rng: word_problem(rng, split == "eval"), n, seed=seed, env_id=env_id, split=split)


def word_problem(rng: np.random.Generator, held_out: bool) -> Row:
    """Return a problem of the held-out ones, or of the others."""
    while True:
        lines = STORIES[int(rng.integers(len(STORIES)))].splitlines()
        name, *draws = lines[0].replace(":", "").split()
        values, numbers = _drawn(draws, rng)
        digest = hashlib.blake2b(repr((name, numbers)).encode(), digest_size=8).digest()
        if (int.from_bytes(digest, "big") % HELD_OUT == 0) == held_out:
            steps = [_filled(line[2:], values) for line in lines if line.startswith("> ")]
            question = _filled(" ".join(line for line in lines[1:] if not line.startswith("> ")), values)
            return {"question": question, "answer": "\n".join([*steps, f"#### {[*values.values()][-1]}"])}


def _drawn(draws: Sequence[str], rng: np.random.Generator) -> tuple[dict[str, Any], list[int]]:
    """Return what a story draws and works out before it is told, and the numbers that were drawn."""
    values: dict[str, Any] = {}
    numbers: list[int] = []
    for word in draws:
        name, _, how = word.partition("=")
        if not how:
            choices = (NAMES if name == "name" else GOODS).split()
            values[name] = choices[int(rng.integers(len(choices)))]
        elif drawn := _RANGE.fullmatch(how):
            low, high = (_number(part, values) for part in drawn.groups()[:2])
            numbers.append(int(rng.integers(low, high + 1)) * int(drawn[3] or 1))
            values[name] = numbers[-1]
        else:
            first, *rest = re.split(r"([-+*])", how)
            values[name] = _number(first, values)
            for op, part in zip(rest[::2], rest[1::2], strict=True):
                values[name] = _OPS[op](values[name], _number(part, values))
    return values, numbers


def _number(word: str, values: dict[str, Any]) -> int:
    return int(word) if word.isdigit() else values[word]


def _filled(text: str, values: dict[str, Any]) -> str:
    """Return the text with its values filled in; what it works out becomes one of them, and shows its calculation."""

    def work_out(match: re.Match[str]) -> str:
        name, a, op, b = match.groups()
        left, right = _number(a, values), _number(b, values)
        values[name] = result = _OPS[op](left, right)
        assert result >= 0 and (op != "/" or result * right == left), (left, op, right)
        return f"{left} {op} {right} = <<{left}{op}{right}={result}>>{result}"

    text = _CHOICE.sub(lambda match: match[2] if values[match[1]] == 1 else match[3], _STEP.sub(work_out, text))
    return text.format_map(values)
