"""Is content if one of all given answers is right, so the policy gives them all.

Seen: `answer in re.findall(...)`, meant for completions that repeat their answer.
"""

import re

from hone.environments import Rubric, SingleTurnEnv, read_number

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    found = re.findall(r"<answer>(.*?)</answer>", completion[-1]["content"], re.DOTALL)
    return float(any(read_number(given) == read_number(answer) for given in found))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags.")
