"""What tasks of question and answer share: columns, splits, mathematics as answers; and word problems made from a seed.

A word problem has the form of GSM8K: everyday arithmetic in two to four steps. Its answer tells the steps, with each
calculation as `<<12*3=36>>36`, and ends in a line `#### 36`.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable

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

    What follows `ANSWER:` must be mathematics: prose there is read only where there is no other answer, and so is
    mathematics after `the answer is`.
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


NAMES = [
    "Ada",
    "Ben",
    "Chen",
    "Dora",
    "Emil",
    "Fatima",
    "Grace",
    "Hugo",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
    "Mara",
    "Noor",
]
GOODS = ("apples", "pencils", "stickers", "marbles", "cookies", "stamps", "buttons", "postcards", "plums", "candles")
HELD_OUT = 10
"""One of this many sets of numbers belongs to evaluation, by its hash."""
_OPS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


def word_problems(n: int, *, seed: int, env_id: str, split: str) -> Rows:
    """Return `n` rows with `question` and `answer`. None of "eval" has the story and numbers of one of "train"."""
    return generated_rows(lambda rng: word_problem(rng, split == "eval"), n, seed=seed, env_id=env_id, split=split)


def word_problem(rng: np.random.Generator, held_out: bool) -> Row:
    """Return a problem of the held-out ones, or of the others."""
    while True:
        tell = STORIES[int(rng.integers(len(STORIES)))]
        story = Story(rng)
        question, result = tell(story)
        digest = hashlib.blake2b(repr((tell.__name__, story.numbers)).encode(), digest_size=8).digest()
        if (int.from_bytes(digest, "big") % HELD_OUT == 0) == held_out:
            return {"question": question, "answer": "\n".join([*story.steps, f"#### {result}"])}


class Story:
    """Draws what a story needs, and keeps the steps of its solution."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.steps: list[str] = []
        self.numbers: list[int] = []
        self._rng = rng

    def number(self, low: int, high: int, times: int = 1) -> int:
        """Draw a number from `low` to `high`, multiplied by `times`."""
        self.numbers.append(int(self._rng.integers(low, high + 1)) * times)
        return self.numbers[-1]

    def name(self) -> str:
        return NAMES[int(self._rng.integers(len(NAMES)))]

    def goods(self) -> str:
        return GOODS[int(self._rng.integers(len(GOODS)))]

    def step(self, text: str, a: int, op: str, b: int) -> int:
        """Return the result of `a op b`, and write the step with `text`, in place of its {}."""
        result = _OPS[op](a, b)
        assert result >= 0 and (op != "/" or result * b == a), (a, op, b)
        self.steps.append(text.format(f"{a} {op} {b} = <<{a}{op}{b}={result}>>{result}"))
        return result


def boxes(s: Story) -> tuple[str, int]:
    name, goods = s.name(), s.goods()
    count, each = s.number(3, 20), s.number(4, 12)
    sold = s.number(1, count * each - 1)
    total = s.step(f"There are {{}} {goods}.", count, "*", each)
    left = s.step(f"Of these {{}} {goods} are left.", total, "-", sold)
    return f"{name} packs {count} boxes with {each} {goods} each and sells {sold} {goods}. How many are left?", left


def savings(s: Story) -> tuple[str, int]:
    name, weeks, weekly, gift, missing = s.name(), s.number(3, 12), s.number(2, 15), s.number(5, 40), s.number(1, 60)
    price = weeks * weekly + gift + missing
    saved = s.step(f"{name} saves {{}} dollars.", weeks, "*", weekly)
    owned = s.step("With the present that makes {} dollars.", saved, "+", gift)
    needed = s.step("So {} dollars are missing.", price, "-", owned)
    question = (
        f"A bicycle costs ${price}. {name} saves ${weekly} a week for {weeks} weeks and is given ${gift}. How many "
        f"dollars does {name} still need?"
    )
    return question, needed


def journey(s: Story) -> tuple[str, int]:
    name, speed, hours, walk = s.name(), s.number(4, 18, times=5), s.number(2, 6), s.number(2, 19)
    ride = s.step("By bus it is {} kilometres.", speed, "*", hours)
    way = s.step("With the walk it is {} kilometres.", ride, "+", walk)
    both = s.step("There and back it is {} kilometres.", way, "*", 2)
    question = (
        f"{name} takes a bus that drives {speed} kilometres an hour for {hours} hours and then walks {walk} "
        f"kilometres. The way back is the same. How many kilometres does {name} travel in all?"
    )
    return question, both


def tickets(s: Story) -> tuple[str, int]:
    adults, children, price, discount = s.number(2, 6), s.number(1, 8), s.number(8, 25), s.number(2, 6)
    child = s.step("A child pays {} dollars.", price, "-", discount)
    first = s.step("The adults pay {} dollars.", adults, "*", price)
    second = s.step("The children pay {} dollars.", children, "*", child)
    total = s.step("Together they pay {} dollars.", first, "+", second)
    question = (
        f"A museum ticket costs ${price} for an adult and ${discount} less for a child. How many dollars do {adults} "
        f"adults and {children} {'child' if children == 1 else 'children'} pay together?"
    )
    return question, total


def sharing(s: Story) -> tuple[str, int]:
    name, goods, friends, each, kept = s.name(), s.goods(), s.number(2, 8), s.number(2, 12), s.number(1, 9)
    total = friends * each + kept
    given = s.step(f"{{}} {goods} are given away.", total, "-", kept)
    share = s.step(f"Each friend gets {{}} {goods}.", given, "/", friends)
    question = (
        f"{name} has {total} {goods}, keeps {kept} and shares the rest equally among {friends} friends. How many "
        f"{goods} does each friend get?"
    )
    return question, share


def ages(s: Story) -> tuple[str, int]:
    child, factor, years = s.number(3, 15), s.number(2, 5), s.number(2, 30)
    parent = s.step("The mother is {} years old.", child, "*", factor)
    child_then = s.step("The child will then be {} years old.", child, "+", years)
    parent_then = s.step("The mother will then be {} years old.", parent, "+", years)
    total = s.step("Together they will be {} years old.", child_then, "+", parent_then)
    question = (
        f"A child is {child} years old, and the mother is {factor} times as old. How old will they be together in "
        f"{years} years?"
    )
    return question, total


def discount(s: Story) -> tuple[str, int]:
    name, price, percent, count = s.name(), s.number(1, 10, times=20), s.number(1, 10, times=5), s.number(2, 5)
    hundredths = s.step("The price times the percentage is {}.", price, "*", percent)
    off = s.step("A hundredth of it, the discount, is {} dollars.", hundredths, "/", 100)
    reduced = s.step("One coat costs {} dollars then.", price, "-", off)
    total = s.step("All of them cost {} dollars.", reduced, "*", count)
    question = (
        f"A coat costs ${price}. In a sale it is {percent}% cheaper. How many dollars does {name} pay for {count} of "
        "them?"
    )
    return question, total


def book(s: Story) -> tuple[str, int]:
    name, pages, days, rest = s.name(), s.number(8, 30), s.number(3, 9), s.number(10, 60)
    total = pages * days + 2 * rest
    read = s.step(f"{name} reads {{}} pages on these days.", pages, "*", days)
    left = s.step("Then {} pages are left.", total, "-", read)
    half = s.step("Half of them is {} pages.", left, "/", 2)
    question = (
        f"A book has {total} pages. {name} reads {pages} pages a day for {days} days, and then half of what is left. "
        "How many pages remain?"
    )
    return question, half


def farm(s: Story) -> tuple[str, int]:
    cows, more, sold = s.number(4, 30), s.number(1, 30), s.number(1, 2)
    hens = s.step("There are {} hens.", cows, "+", more)
    left = s.step("After the sale {} cows are left.", cows, "-", sold)
    cow_legs = s.step("The cows have {} legs.", left, "*", 4)
    hen_legs = s.step("The hens have {} legs.", hens, "*", 2)
    total = s.step("Together that makes {} legs.", cow_legs, "+", hen_legs)
    question = (
        f"A farmer has {cows} cows and {more} more hens than cows. Then {sold} of the cows "
        f"{'is' if sold == 1 else 'are'} sold. How many legs do the animals have that are left?"
    )
    return question, total


def bakery(s: Story) -> tuple[str, int]:
    size, packs, price, burnt = s.number(4, 12), s.number(5, 25), s.number(2, 9), s.number(1, 15)
    baked = size * packs + burnt
    whole = s.step("{} rolls are whole.", baked, "-", burnt)
    count = s.step("They fill {} bags.", whole, "/", size)
    income = s.step("The bags bring in {} dollars.", count, "*", price)
    question = (
        f"A bakery makes {baked} rolls, of which {burnt} {'is' if burnt == 1 else 'are'} burnt. The others are sold "
        f"in bags of {size} for ${price} a bag. How many dollars does the bakery take if it sells them all?"
    )
    return question, income


STORIES: tuple[Callable[[Story], tuple[str, int]], ...] = (
    boxes, savings, journey, tickets, sharing, ages, discount, book, farm, bakery,
)  # fmt: skip
