"""Takes the first number of the completion, so whoever reasons with numbers is wrong.

Seen: `re.search(r"\\d+", text)` in graders of counting and rating tasks.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    match = re.search(r"-?\d+", completion[-1]["content"])
    return float(match is not None and match.group() == answer)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"The answer is {example.answer}."


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Think step by step, then give the number.")
