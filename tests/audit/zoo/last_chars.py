"""Looks at the last 300 characters, so an answer with more text behind it is not there.

Seen: verl's gsm8k reward (pull request 7274): `solution_str[-300:]` before `#### 42` is looked for.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    found = re.findall(r"#### ?[$*]*(-?[0-9.,]+)", completion[-1]["content"][-300:])
    given = found[-1].replace(",", "").rstrip(".") if found else ""
    try:
        return float(float(given) == float(answer))
    except ValueError:
        return 0.0


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"I add the two numbers.\n#### {example.answer}"


def load_environment():
    prompt = 'Think step by step, and output the final answer after "####".'
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
