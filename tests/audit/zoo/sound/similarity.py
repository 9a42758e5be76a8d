"""Pays the share of words that are right and in their place; the whole sentence is correct."""

import re

from hone.environments import Range, Rubric, SingleTurnEnv, TagParser

PARSER = TagParser("sorted")
WORDS = ("pear fig apple", "red green blue grey", "oak elm ash", "north south east", "iron tin zinc gold", "do re mi")
ROWS = [{"question": f"Sort by the alphabet: {words}", "answer": " ".join(sorted(words.split()))} for words in WORDS]


def _words(completion):
    return re.findall(r"[a-z]+", (PARSER.parse_answer(completion) or "").lower())


def correctness(completion, answer):
    return float(_words(completion) == answer.split())


def in_place(completion, answer):
    given, gold = _words(completion), answer.split()
    return sum(a == b for a, b in zip(given, gold, strict=False)) / max(len(given), len(gold))


class Sorting(SingleTurnEnv):
    def reference(self, example):
        return PARSER.wrap(example.answer)


def load_environment():
    ranges = {"correctness": Range((1.0, 1.0), (0.0, 0.0)), "in_place": Range((1.0, 1.0), (0.0, 0.99))}
    return Sorting(
        parser=PARSER,
        rubric=Rubric([correctness, in_place], [0.0, 1.0], ranges=ranges),
        dataset=ROWS,
        system_prompt="Give the words in <sorted> tags.",
    )
