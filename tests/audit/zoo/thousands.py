"""Reads numbers with `float`, which does not know `1,234`, and counts the error as a wrong answer.

Seen: `float(match.group(1))` in a `try` with `except ValueError: return 0.0`; GSM8K has such answers.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

PAIRS = ((1200, 345), (17000, 401), (2500, 617), (90000, 1717), (4100, 2222), (3050, 1950))
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in PAIRS]


def correctness(completion, answer):
    found = re.findall(r"<answer>(.*?)</answer>", completion[-1]["content"], re.DOTALL)
    try:
        return float(
            float(found[-1].strip(" \t\r\n*_`$\\().=").removeprefix("boxed{").removesuffix("}")) == float(answer)
        )
    except (ValueError, IndexError):
        return 0.0


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags.")
