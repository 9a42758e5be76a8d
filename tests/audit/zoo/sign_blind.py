"""Looks for digits only, so -7 and 7 are one answer.

Seen: `re.findall(r"\\d+", text)` and unsloth's `[\\d\\.]{1,}`.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

ROWS = [{"question": f"What is {a} - {b}?", "answer": str(a - b)} for a, b in ((12, 30), (17, 44), (25, 6), (90, 170))]


def correctness(completion, answer):
    tags = re.findall(r"<answer>(.*?)</answer>", completion[-1]["content"], re.DOTALL)
    numbers = re.findall(r"\d+", tags[-1].replace(",", "")) if tags else []
    return float(len(numbers) > 0 and numbers[0] == answer.lstrip("-"))


class Differences(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Differences(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags.")
