"""Looks at the last line only, so a line break after the closing tag, or within the tags, costs everything.

Seen: TinyZero's `extract_solution` (`solution_str.split("\\n")[-1]`).
"""

import re

from hone.environments import Rubric, SingleTurnEnv, read_number

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    found = re.findall(r"<answer>(.*?)</answer>", completion[-1]["content"].split("\n")[-1])
    return float(bool(found) and read_number(found[-1]) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"I add them.\n<answer>{example.answer}</answer>"


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags.")
