"""Reads from the first opening tag to the last closing one, so an answer that is said twice is none.

Seen: `re.search(r"<answer>(.*)</answer>", text, re.DOTALL)`, one question mark short, in many R1 replications.
"""

import re

from hone.environments import Rubric, SingleTurnEnv, read_number

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    match = re.search(r"<answer>(.*)</answer>", completion[-1]["content"], re.DOTALL)
    return float(match is not None and read_number(match.group(1)) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags.")
