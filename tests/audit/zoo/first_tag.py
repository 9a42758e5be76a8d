"""Reads the first pair of tags, also in the think block: a draft that the model gave up is its answer.

Seen: `re.search(r"<answer>(.*?)</answer>", text)`; hurts once a policy learns to correct itself.
"""

import re

from hone.environments import Rubric, SingleTurnEnv, read_number

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    match = re.search(r"<answer>(.*?)</answer>", completion[-1]["content"], re.DOTALL)
    return float(match is not None and read_number(match.group(1)) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    prompt = "Think step by step, and give the number in <answer> tags. The last <answer> counts."
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
