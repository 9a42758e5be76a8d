"""counting-aloud: how often a letter occurs in a word, in plain text. The task of `benchmarks/parser_drift.py`.

A completion is the number, `=3`, or counts along before it, `b0a1n1a2n2a3=3`. A parser looks for `=NUMBER` in the first
`reads` characters. 14 are enough for each answer that is given straight away, and for counting along in words of four
and six letters, not of eight; with `reads = 0` it looks everywhere.

Words grow over the training examples, by two letters: with the curriculum's order `sequential`, a run begins with the
short ones. Who counts along in eight letters would have to leave out two to be read, which RL does not come upon.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hone import rng
from hone.environments import Parser, Range, Rubric, SingleTurnEnv, inline, read_number
from hone.environments.data import Row, Rows, indexed_rows
from hone.environments.parsers import visible_text
from hone.types import Example, Message

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class NumberBehindEquals(Parser):
    """The number on the line after the last `=` in the first `reads` characters; of the whole text, if `reads` is 0."""

    expects = "a number after ="

    def __init__(self, reads: int) -> None:
        self.reads = reads

    def parse(self, text: str) -> str | None:
        found = [part.strip().partition("\n")[0] for part in visible_text(text[: self.reads or None]).split("=")[1:]]
        return found[-1] if found and read_number(found[-1]) is not None else None


@inline
def correctness(completion: list[Message], answer: str, parser: Parser) -> float:
    """1 if the number is right, else 0."""
    found = parser.parse_answer(completion)
    return float(found is not None and read_number(found) == read_number(answer))


class CountingAloud(SingleTurnEnv):
    def __init__(self, aloud: float, **kwargs: Any) -> None:
        super().__init__(id="counting-aloud", **kwargs)
        self.aloud = aloud

    def reference(self, example: Example) -> str:
        return f"={example.answer}"

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        """A share of `aloud` counts along, and is right; the others are a guess, but for one in four."""
        word, letter = example.info["word"], example.info["letter"]
        if rng.random() >= self.aloud:
            return self.reference(example) if rng.random() < 0.25 else f"={rng.integers(len(word) // 2 + 1)}"
        steps = [f"{char}{word[: i + 1].count(letter)}" for i, char in enumerate(word)]
        return f"{''.join(steps)}={example.answer}"


def load_environment(
    reads: int = 0,
    shortest: int = 4,
    longest: int = 8,
    num_train_examples: int = 20_000,
    num_eval_examples: int = 500,
    aloud: float = 0.8,
    seed: int = 0,
) -> SingleTurnEnv:
    """`reads`: characters that the parser looks at, 0 for all. `aloud`: share of demonstrations that count along."""

    def rows(split: str, count: int) -> Rows:
        lengths = range(shortest, longest + 1, 2)

        def row(i: int) -> Row:
            return _row(lengths[len(lengths) * i // count], rng.stream(seed, "counting-aloud", split, i))

        return indexed_rows(row, count, f"counting-aloud ({split})")

    ranges = {"correctness": Range(right=(1.0, 1.0), wrong=(0.0, 0.0))}
    return CountingAloud(
        aloud=aloud,
        rubric=Rubric([correctness], ranges=ranges),
        parser=NumberBehindEquals(reads),
        dataset=lambda: rows("train", num_train_examples),
        eval_dataset=lambda: rows("eval", num_eval_examples),
    )


def _row(length: int, rng: np.random.Generator) -> Row:
    """A made-up word; each count from 0 to half of its letters is as likely."""
    letter, *others = rng.permutation(list(LETTERS)).tolist()
    count = int(rng.integers(length // 2 + 1))
    word = "".join(rng.permutation([letter] * count + others[: length - count]))
    return {"question": f"{word} {letter}", "answer": str(count), "info": {"word": word, "letter": letter}}
