"""`#### 42` as GSM8K has it, found by the reward function alone: the task gives no parser."""

import re

from hone.environments import Rubric, SingleTurnEnv, read_number
from hone.environments.answers import said

PAIRS = ((3, 14), (7, 12), (9, 23), (15, 6), (4, 31), (8, 17), (11, 13), (5, 44))
ROWS = [{"question": f"{a} bags hold {b} nuts each. How many nuts are there?", "answer": str(a * b)} for a, b in PAIRS]


def correctness(completion, answer):
    found = [line for line in re.findall(r"####([^\n]*)", said(completion[-1]["content"])) if line.strip()]
    return float(bool(found) and read_number(found[-1]) == read_number(answer))


class Nuts(SingleTurnEnv):
    def reference(self, example):
        return f"Each bag holds the same, so I multiply.\n#### {example.answer}"


def load_environment():
    prompt = "Think step by step, and write the final number after ####."
    return Nuts(rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
