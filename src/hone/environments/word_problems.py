"""Word problems made up from a seed, in the form of GSM8K: everyday arithmetic in two to four steps.

The answer tells the steps, with each calculation as `<<12*3=36>>36`, and ends in a line `#### 36`.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable

import numpy as np

from hone.environments.data import Row, Rows, generated_rows

NAMES = (
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
)
GOODS = ("apples", "pencils", "stickers", "marbles", "cookies", "stamps", "buttons", "postcards", "plums", "candles")
HELD_OUT = 10
"""One of this many sets of numbers belongs to evaluation, by its hash."""
_OPS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv}


def word_problems(n: int, *, seed: int, env_id: str, split: str) -> Rows:
    """`n` rows with `question` and `answer`. No problem of "eval" has the story and the numbers of one of "train"."""
    return generated_rows(lambda rng: word_problem(rng, split == "eval"), n, seed=seed, env_id=env_id, split=split)


def word_problem(rng: np.random.Generator, held_out: bool) -> Row:
    """A problem of the held-out ones, or of the others."""
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
        """A number from `low` to `high`, multiplied by `times`."""
        self.numbers.append(int(self._rng.integers(low, high + 1)) * times)
        return self.numbers[-1]

    def name(self) -> str:
        return NAMES[int(self._rng.integers(len(NAMES)))]

    def goods(self) -> str:
        return GOODS[int(self._rng.integers(len(GOODS)))]

    def step(self, text: str, a: int, op: str, b: int) -> int:
        """The result of `a op b`, told in `text` where it says {}."""
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
