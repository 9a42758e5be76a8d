"""Compares numbers as text: `42.0`, `$42`, `+42` and `**42**` are not `42`.

Seen: `extracted == answer` of the first GRPO demo for GSM8K.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    found = re.findall(r"<answer>(.*?)</answer>", completion[-1]["content"], re.DOTALL)
    return float(bool(found) and found[-1].strip() == answer)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags.")
