"""Draws part of the reward anew each time.

Seen: placeholders that stayed, exploration noise "so that groups are never equal", and judges at temperature 1.
"""

import random

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def quality(completion):
    return random.random()


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, quality], [1.0, 0.5]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
