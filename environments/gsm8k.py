"""gsm8k: word problems of everyday arithmetic, with a number as the answer.

`mode = "two_part"` (the default): the answer is the number after `ANSWER:`, so that no other number in a long solution
can be taken for it. The parts add up: 0.1 for the form, 1 for the right number. `mode = "sparse"`: the last number of
the completion is the answer, and 1 the reward for a right one. It breaks where a solution goes on after its answer:
watch `outcome/wrong` while completions grow longer.

    hone eval gsm8k -m outputs/weights/step_100 -n 200

Problems are made up from a seed, unless `dataset` names files or `openai/gsm8k` on the hub. They have GSM8K's form:
everyday arithmetic in two to four steps. The answer tells the steps, with each calculation as `<<12*3=36>>36`, and ends
in a line `#### 36`.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from hone.environments import (
    LastNumberParser,
    NumberParser,
    Parser,
    Range,
    Rubric,
    SingleTurnEnv,
    inline,
    read_number,
    same_number,
)
from hone.environments.data import Count, Noise, Row, Rows, generated_rows
from hone.environments.problems import answer_of, prompt_of, question_of, splits
from hone.environments.rubric import format
from hone.errors import UserError
from hone.types import Example, Message

HUB, CONFIG = "openai/gsm8k", "openai/gsm8k:main"
HINTS = {
    "two_part": "Think step by step, and end with a line ANSWER: {number}",
    "sparse": "Think step by step, and end with the answer as a number.",
}
PARSERS: dict[str, Parser] = {"two_part": NumberParser(("marker",)), "sparse": LastNumberParser()}
CALCULATION = re.compile(r"<<[^<>]*>>")
RIGHT_OR_WRONG = Range(right=(1.0, 1.0), wrong=(0.0, 0.0))


@inline
def correctness(completion: list[Message], answer: str, parser: Parser) -> float:
    """Return 1 if the given number is the right one, else 0."""
    given = parser.parse_answer(completion)
    return float(given is not None and same_number(given, answer))


class GSM8K(SingleTurnEnv):
    """Rows have `question` and `answer`: the solution with a last line `#### 42`, or just the number."""

    def __init__(self, *, mode: str, hint: str, demo_noise: float, **kwargs: Any) -> None:
        super().__init__(id="gsm8k", parser=PARSERS[mode], rubric=_rubric(mode), **kwargs)
        self.mode, self.hint, self.demo_noise = mode, hint, demo_noise

    def format_row(self, row: Row) -> Row:
        solution, _, number = answer_of(row).rpartition("####")
        if read_number(number) is None:
            raise UserError(
                f"gsm8k: the answer {number.strip()!r} of {question_of(row)[:60]!r} is no number; correct it"
            )
        return {
            "prompt": prompt_of(row, self.hint),
            "answer": number.strip(),
            "info": {"solution": CALCULATION.sub("", solution).strip()},
        }

    def reference(self, example: Example) -> str:
        """Return the solution as the data has it, and the answer in the form that is asked for."""
        return self._written(example, example.answer, self.mode == "two_part")

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        """Return the reference as an unreliable teacher would write it.

        At `demo_noise` 1, 30 % of the answers lack their form and 30 % are 1 to 10 off; both scale with it.
        """
        plain, wrong = rng.random(2) < 0.3 * self.demo_noise
        number = read_number(example.answer)
        assert number is not None
        answer = str(number + int(rng.integers(1, 11))) if wrong else example.answer
        return self._written(example, answer, self.mode == "two_part" and not plain)

    def _written(self, example: Example, answer: str, marked: bool) -> str:
        last = f"ANSWER: {answer}" if marked else f"The answer is {answer}."
        return f"{example.info['solution']}\n{last}".strip()


def load_environment(
    mode: str = "two_part",
    dataset: str | None = None,
    eval_dataset: str | None = None,
    dataset_split: str = "train",
    eval_split: str = "test",
    num_train_examples: Count = 7_500,
    num_eval_examples: Count = 1_000,
    easy: bool = False,
    seed: int = 0,
    format_hint: bool = True,
    system_prompt: str = "",
    demo_noise: Noise = 0.0,
) -> SingleTurnEnv:
    """Return gsm8k on made-up problems, or those of `dataset` and `eval_dataset`: files, folders or hub ids.

    `openai/gsm8k` brings its test split; of another `dataset` alone a tenth is held out. `easy` makes up
    problems of one step, sums and differences of numbers below 100. `format_hint` adds to each question how to answer.
    """
    if mode not in PARSERS:
        raise UserError(f"gsm8k: mode is {mode!r}; it must be 'two_part' (ANSWER: 42) or 'sparse' (the last number)")

    def own(split: str) -> Rows:
        """Return problems made up. None of "eval" has story and numbers of one of "train"."""
        count = num_train_examples if split == "train" else num_eval_examples
        make = functools.partial(word_problem, stories=EASY if easy else STORIES, held_out=split == "eval")
        return generated_rows(make, count, seed=seed, env_id="gsm8k", split=split)

    if dataset == HUB:
        dataset, eval_dataset = CONFIG, eval_dataset or CONFIG
    return GSM8K(
        mode=mode,
        hint=HINTS[mode] * format_hint,
        demo_noise=demo_noise,
        system_prompt=system_prompt,
        **splits(
            dataset,
            CONFIG if eval_dataset == HUB else eval_dataset,
            dataset_split,
            eval_split,
            own,
        ),
    )


def _rubric(mode: str) -> Rubric:
    if mode == "sparse":
        return Rubric([correctness], ranges={"correctness": RIGHT_OR_WRONG})
    ranges = {"format": Range(right=(1.0, 1.0), wrong=(1.0, 1.0)), "correctness": RIGHT_OR_WRONG}
    return Rubric([format, correctness], [0.1, 1.0], correctness=correctness, ranges=ranges)


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
EASY = [
    """\
more: name goods some=2..50 more=2..50
{name} has {some} {goods} and gets {more} more. How many {goods} does {name} have now?
> {name} has {total = some + more} {goods}.""",
    """\
fewer: name goods given=2..49 kept=1..50 some=given+kept
{name} has {some} {goods} and gives {given} of them away. How many {goods} are left?
> There are {left = some - given} {goods} left.""",
]
"""The same, of one step."""


def word_problem(rng: np.random.Generator, stories: Sequence[str], held_out: bool) -> Row:
    """Return a problem of the held-out ones, or of the others."""
    while True:
        lines = stories[int(rng.integers(len(stories)))].splitlines()
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
