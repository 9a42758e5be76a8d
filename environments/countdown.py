r"""countdown: make a target from three to six numbers with + - * / and brackets.

    hone eval countdown -m outputs/weights/step_100 -n 20

An answer is an expression in `<answer>` tags (or in `\boxed{}`, or after `ANSWER:`). It is worth 0.1 if it is
well-formed, and 1 if its value is the target and it uses the numbers as asked: each exactly once, or with
`use_all = false` at most once. Well-formed is what this grammar says and nothing else: model output is never evaluated,
and values are exact fractions.

    equation   = sum [ "=" integer ]                  the integer must be the target
    sum        = product { ("+" | "-" | "−") product }
    product    = factor { ("*" | "/" | "×" | "÷" | "·" | "\times" | "\cdot" | "\div") factor }
    factor     = integer | "(" sum ")" | "\frac{" sum "}{" sum "}" | "-" factor

Space and line breaks between them do not matter; a `\(…\)`, `$…$` or `\boxed{…}` may be around it. There is no implicit
multiplication, no `**`, `//`, decimal point or leading zero, and an answer has at most 512 characters.

By default problems are generated, each solvable with whole numbers above 0 all the way; a tenth of all problems is held
out, by content. `dataset` names a file or a hub set with the columns `nums` and `target` instead, such as
`Jiayi-Pan/Countdown-Tasks-3to4`.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hone.environments import AnswerParser, SingleTurnEnv, answer_rubric, inline
from hone.environments.data import Count, Noise, Row, Rows, generated_rows, hold_out, train_and_eval
from hone.errors import UserError
from hone.types import Example, Message

PROMPT = "Use the numbers {nums} to make {target}. Each number may be used {uses}, with {operations} and brackets."
FORMAT_HINT = " Think in <think> tags, then give the expression in <answer> tags, such as <answer>(1+2)/3</answer>."
MAX_CHARS = 512
MAX_NUMBERS = 6
Numbers = Annotated[int, Field(ge=2, le=MAX_NUMBERS)]
ATTEMPTS = 100_000

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0|[1-9][0-9]*)(?![0-9.,])|(?P<frac>\\[dt]?frac)|\\left\s*(?P<left>\()|\\right\s*(?P<right>\))"
    r"|(?P<sign>\\times|\\cdot|\\div|[-+*/×÷−·(){}=]))"
)
_SIGNS = {"×": "*", "·": "*", r"\times": "*", r"\cdot": "*", "÷": "/", r"\div": "/", "−": "-"}
_WRAPPERS = ((r"\(", r"\)"), (r"\[", r"\]"), ("$$", "$$"), ("$", "$"), ("`", "`"), ("**", "**"), (r"\boxed{", "}"))
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class Expression:
    """A well-formed answer: what it is worth (None: it divides by zero), and what it is made of.

    `stated` is what it says after `=`, if it does.
    """

    value: Fraction | None
    numbers: tuple[int, ...]
    operations: frozenset[str]
    stated: int | None


def read_expression(text: str) -> Expression | None:
    """Return the expression that `text` is, or None if it is not in the grammar."""
    tokens = _tokens(text) if len(text) <= MAX_CHARS else None
    if tokens is None:
        return None
    stated = None
    if len(tokens) > 2 and tokens[-2] == "=" and tokens[-1].isdigit():
        stated = int(tokens[-1])
        tokens = tokens[:-2]
    left = tokens[::-1]
    try:
        value = _evaluate(left)
    except SyntaxError:
        return None
    if left:
        return None
    numbers = tuple(int(token) for token in tokens if token.isdigit())
    operations = frozenset("/" if token == "frac" else token for token in tokens if token in ("frac", *"+-*/"))
    return Expression(value, numbers, operations, stated)


def _tokens(text: str) -> list[str] | None:
    """Return integers, `frac`, brackets, braces, `=` and the four operations; None if there is anything else."""
    text, before = text.strip(), ""
    while text != before:
        before = text
        for opening, closing in _WRAPPERS:
            if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing):
                text = text[len(opening) : -len(closing)].strip()
    tokens, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        kind = match.lastgroup or ""
        tokens.append("frac" if kind == "frac" else _SIGNS.get(match[kind], match[kind]))
        position = match.end()
    return tokens


def _evaluate(tokens: list[str], precedence: int = 0) -> Fraction | None:
    """Take an operand, and what is combined with it by operations that bind more tightly, from the end of `tokens`.

    Return the value, None after a division by zero. Raises SyntaxError for what is no expression. By precedence
    climbing: brackets cost one level of recursion, and no text is long enough for a few hundred of them.
    """
    negative = False
    while tokens and tokens[-1] == "-":
        negative = not negative
        tokens.pop()
    token = tokens.pop() if tokens else ""
    if token == "(":
        value = _evaluate(tokens)
        _take(tokens, ")")
    elif token == "frac":
        parts = []
        for _ in range(2):
            _take(tokens, "{")
            parts.append(_evaluate(tokens))
            _take(tokens, "}")
        value = combine("/", *parts)
    elif token.isdigit():
        value = Fraction(int(token))
    else:
        raise SyntaxError
    value = -value if negative and value is not None else value
    while tokens and _PRECEDENCE.get(tokens[-1], 0) > precedence:
        operator = tokens.pop()
        value = combine(operator, value, _evaluate(tokens, _PRECEDENCE[operator]))
    return value


def _take(tokens: list[str], wanted: str) -> None:
    if not tokens or tokens.pop() != wanted:
        raise SyntaxError


def combine(operator: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    """Return the exact value of `left operator right`; None for a division by zero, and of what holds one."""
    if left is None or right is None:
        return None
    if operator == "/":
        return left / right if right else None
    return left + right if operator == "+" else left - right if operator == "-" else left * right


def solve(nums: Sequence[int], target: int, operations: str = "+-*/", use_all: bool = True) -> str | None:
    """Return an expression of the numbers that makes the target, or None if there is none. The same one each time.

    Tries all ways to combine two of the numbers into one, until one is left (or, unless `use_all`, one is the target).
    """
    seen: set[tuple[Fraction, ...]] = set()

    def search(terms: list[tuple[Fraction, str, int]]) -> str | None:
        for value, text, _ in terms:
            if value == target and (len(terms) == 1 or not use_all):
                return text
        key = tuple(sorted(value for value, _, _ in terms))
        if len(terms) == 1 or key in seen:
            return None
        seen.add(key)
        for i, j in ((i, j) for i in range(len(terms)) for j in range(len(terms)) if i != j):
            rest = [term for k, term in enumerate(terms) if k not in (i, j)]
            for operator in operations:
                joined = None if operator in "+*" and i > j else _join(operator, terms[i], terms[j])
                found = search([joined, *rest]) if joined else None
                if found:
                    return found
        return None

    return search([(Fraction(num), str(num), 3) for num in nums])


def _join(
    operator: str, left: tuple[Fraction, str, int], right: tuple[Fraction, str, int]
) -> tuple[Fraction, str, int] | None:
    """Return (value, text, precedence) of two such terms combined, with brackets where they are needed."""
    value = combine(operator, left[0], right[0])
    if value is None:
        return None
    level = _PRECEDENCE[operator]
    first = left[1] if left[2] >= level else f"({left[1]})"
    second = right[1] if right[2] >= level + (operator in "-/") else f"({right[1]})"
    return value, first + operator + second, level


class Countdown(SingleTurnEnv):
    """Rows have `nums` (whole numbers) and `target` (a whole number), or hold them in `info`."""

    def __init__(self, *, prompt: str, use_all: bool, operations: str, demo_noise: float, **kwargs: Any) -> None:
        self.parser_of_answers = AnswerParser(read_expression, expects="an expression in <answer> tags")
        rubric = answer_rubric(self.correctness)
        super().__init__(id="countdown", parser=self.parser_of_answers, rubric=rubric, **kwargs)
        self.prompt, self.use_all, self.operations, self.demo_noise = prompt, use_all, operations, demo_noise

    @inline
    def correctness(self, completion: list[Message], info: dict[str, Any]) -> float:
        """Return 1 if the expression uses the numbers as asked and makes the target, else 0."""
        given = self.parser_of_answers.value(completion)
        if given is None or given.value != info["target"] or given.stated not in (None, info["target"]):
            return 0.0
        used, there = Counter(given.numbers), Counter(info["nums"])
        return float((used == there if self.use_all else used <= there) and given.operations <= set(self.operations))

    def format_row(self, row: Row) -> Row:
        held = row["info"] if isinstance(row.get("info"), dict) else {}
        columns = {"target": row.get("answer")} | held | row
        if columns["target"] is None:
            raise KeyError("target")
        nums, target = _whole_numbers(columns["nums"]), _whole_numbers([columns["target"]])
        if nums is None or target is None or not 1 <= len(nums) <= MAX_NUMBERS:
            raise UserError(
                f"countdown: nums {columns['nums']!r} and target {columns['target']!r} make no problem; nums must be a "
                f"list of at most {MAX_NUMBERS} whole numbers from 0, target a whole number"
            )
        question = self.prompt.replace("{nums}", ", ".join(map(str, nums))).replace("{target}", str(target[0]))
        return {"question": question, "answer": str(target[0]), "info": {"nums": nums, "target": target[0]}}

    def reference(self, example: Example) -> str:
        found = solve(example.info["nums"], example.info["target"], self.operations, self.use_all)
        if found is None:
            raise UserError(f"countdown: nums {example.info['nums']} cannot make {example.info['target']}")
        return self.parser_of_answers.wrap(found)

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        """Return the reference; with probability 0.3 x `demo_noise`, random operations on shuffled numbers."""
        if rng.random() >= 0.3 * self.demo_noise:
            return self.reference(example)
        nums = rng.permutation(example.info["nums"])
        signs = rng.integers(len(self.operations), size=len(nums) - 1)
        rest = (self.operations[sign] + str(num) for sign, num in zip(signs, nums[1:], strict=True))
        return self.parser_of_answers.wrap("".join([str(nums[0]), *rest]))


@dataclass(frozen=True)
class Generator:
    """Draws problems: how many numbers, how large numbers and target may be (both ends included), which operations."""

    numbers: tuple[int, int]
    size: tuple[int, int]
    target: tuple[int, int]
    operations: str

    def __call__(self, held_out: bool, rng: np.random.Generator) -> Row:
        """Return a solvable problem, of the tenth that is held out or of the others."""
        smallest, largest = self.size
        for _ in range(ATTEMPTS):
            count = int(rng.integers(self.numbers[0], self.numbers[1], endpoint=True))
            draws = iter(rng.random(4 * count).tolist())
            nums = [smallest + int(next(draws) * (largest - smallest + 1)) for _ in range(count)]
            target = self._made_of(nums, draws)
            if self.target[0] <= target <= self.target[1] and is_held_out(nums, target) == held_out:
                return {"nums": nums, "target": target}
        raise UserError(
            f"countdown: no problem found with numbers from {self.size[0]} to {self.size[1]}, a target from "
            f"{self.target[0]} to {self.target[1]} and the operations {self.operations!r}; widen one of them"
        )

    def _made_of(self, nums: list[int], draws: Iterator[float]) -> int:
        """Combine two of the numbers at random until one is left; 0 if a step leaves the whole numbers above 0."""
        values = list(nums)
        while len(values) > 1:
            left, right = (values.pop(int(next(draws) * len(values))) for _ in range(2))
            operator = self.operations[int(next(draws) * len(self.operations))]
            if operator == "/":
                value = left // right if right and left % right == 0 else 0
            else:
                value = left + right if operator == "+" else left - right if operator == "-" else left * right
            if value <= 0:
                return 0
            values.append(value)
        return values[0]


def is_held_out(nums: Sequence[int], target: int) -> bool:
    """Return True if a problem is of the tenth that is held out, whatever the order of its numbers and the seed."""
    return hashlib.blake2b(_content(nums, target).encode(), digest_size=8).digest()[0] % 10 == 0


def load_environment(
    dataset: str | None = None,
    eval_dataset: str | None = None,
    dataset_split: str = "train",
    eval_split: str = "test",
    num_train_examples: Count | None = None,
    num_eval_examples: Count | None = None,
    min_numbers: Numbers = 3,
    max_numbers: Numbers = 4,
    min_number: Annotated[int, Field(ge=0)] = 1,
    max_number: int = 99,
    min_target: Count = 10,
    max_target: int = 100,
    operations: str = "+-*/",
    use_all: bool = True,
    seed: int = 0,
    prompt: str = PROMPT,
    format_hint: bool = True,
    system_prompt: str = "",
    demo_noise: Noise = 0.0,
) -> SingleTurnEnv:
    """Return countdown on generated problems, or on the rows of `dataset`: a file, a folder or a hub id.

    Of `dataset` without `eval_dataset` a tenth of the problems is held out by content; or, if both `num_…_examples` are
    given, train is its first and eval its next rows, as TinyZero has it (327,680 and 1,024). Generated are 50,000 and
    1,000 problems unless these say otherwise. `prompt` is the user message, with {nums} and {target} in it, and {uses}
    and {operations} if it likes; `format_hint` adds how to answer.
    """
    if not operations or not set(operations) <= set("+-*/") or len(set(operations)) < len(operations):
        raise UserError(f"countdown: operations is {operations!r}; it must be one or more of + - * /, each once")
    if "{nums}" not in prompt or "{target}" not in prompt:
        raise UserError(f"countdown: prompt is {prompt!r}; it must contain {{nums}} and {{target}}")
    for name, least, most in (
        ("numbers", min_numbers, max_numbers),
        ("number", min_number, max_number),
        ("target", min_target, max_target),
    ):
        if most < least:
            raise UserError(f"countdown: max_{name} is {most}; it must be at least min_{name}, {least}")
    generator = Generator((min_numbers, max_numbers), (min_number, max_number), (min_target, max_target), operations)

    def halve(rows: Rows) -> tuple[Rows, Rows]:
        if num_train_examples is None or num_eval_examples is None:
            return hold_out(rows, lambda row: _content(row["nums"], row["target"]))
        end = num_train_examples + num_eval_examples
        if end > len(rows):
            raise UserError(f"countdown: {dataset} has {len(rows)} rows, fewer than the {end} asked for")
        return rows.take(range(num_train_examples)), rows.take(range(num_train_examples, end))

    def own(split: str) -> Rows:
        count = (num_train_examples or 50_000) if split == "train" else (num_eval_examples or 1_000)
        make = functools.partial(generator, split == "eval")
        return generated_rows(make, count, seed=seed, env_id="countdown", split=split)

    prompt = prompt.replace("{uses}", "exactly once" if use_all else "at most once")
    prompt = prompt.replace("{operations}", ", ".join(operations)) + FORMAT_HINT * format_hint
    return Countdown(
        prompt=prompt,
        use_all=use_all,
        operations=operations,
        demo_noise=demo_noise,
        system_prompt=system_prompt,
        **train_and_eval(dataset, eval_dataset, dataset_split, eval_split, halve, own),
    )


def _whole_numbers(values: Any) -> list[int] | None:
    """Return them as integers, or None if they are not a list of whole numbers from 0."""
    if not isinstance(values, list | tuple):
        return None
    texts = [str(value) for value in values if not isinstance(value, bool)]
    return [int(text) for text in texts] if len(texts) == len(values) and all(map(str.isdecimal, texts)) else None


def _content(nums: Sequence[int], target: int) -> str:
    return f"{sorted(nums)} {target}"
