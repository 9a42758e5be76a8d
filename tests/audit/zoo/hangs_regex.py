"""A format check whose regular expression takes exponential time on prose: nested repetition before the tag.

Seen: `^(\\s*\\w+\\s*)*<answer>`-like patterns, written to allow "some words before the tags".
"""

import re

from hone.environments import Rubric, SingleTurnEnv, read_number

FORMAT = re.compile(r"^(?:\w+\s?)*\s*<answer>(.*?)</answer>", re.DOTALL)
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    match = FORMAT.search(completion[-1]["content"])
    return float(match is not None and read_number(match.group(1)) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags.")
