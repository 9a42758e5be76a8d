r"""Ends the box at the first closing brace, so `\boxed{\frac{5}{6}}` is `\frac{5`.

Seen: `re.search(r"\\boxed\{(.*?)\}", text)` in the documentation of TRL and wherever that was copied.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

ROWS = [
    {"question": f"What is 1/{a} + 1/{b}?", "answer": s}
    for a, b, s in ((2, 3, r"\frac{5}{6}"), (2, 2, "1"), (3, 4, r"\frac{7}{12}"), (2, 5, r"\frac{7}{10}"))
]


def correctness(completion, answer):
    match = re.search(r"\\boxed\{(.*?)\}", completion[-1]["content"])
    return float(match is not None and match.group(1) == answer)


class Fractions(SingleTurnEnv):
    def reference(self, example):
        return f"The sum is \\boxed{{{example.answer}}}."


def load_environment():
    return Fractions(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the result in \\boxed{}.")
