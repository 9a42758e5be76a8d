"""Divides by what may be zero in numpy: the reward is NaN, which poisons a group's mean without an error.

Seen: BLEU- and length-normalised rewards on empty completions; verl and TRL took NaN for a reward.
"""

import re

import numpy as np

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def variety(completion):
    """The share of different words."""
    words = re.findall(r"\w+", completion[-1]["content"])
    with np.errstate(all="ignore"):
        return float(np.float64(len(set(words))) / np.float64(len(words)))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, variety], [1.0, 0.1]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
