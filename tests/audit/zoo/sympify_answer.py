"""Reads mathematics with sympy's `sympify`, which runs what it reads: it is eval with a different name.

Seen: MATH graders that fall back to `sympy.simplify(a) - sympy.simplify(b) == 0`, as in the PRM800K family.
"""

import re

import sympy

from hone.environments import Rubric, SingleTurnEnv

ROWS = [
    {"question": f"What is {a}/{b} + 1/{c}?", "answer": s}
    for a, b, c, s in ((1, 2, 3, "5/6"), (3, 4, 2, "5/4"), (2, 5, 3, "11/15"), (1, 7, 2, "9/14"), (5, 6, 4, "13/12"))
]


def correctness(completion, answer):
    found = re.findall(r"<answer>(.*?)</answer>", completion[-1]["content"], re.DOTALL)
    if not found:
        return 0.0
    try:
        return float(bool(sympy.sympify(found[-1].strip()) - sympy.sympify(answer) == 0))
    except Exception:
        return 0.0


class Fractions(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Fractions(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the fraction in <answer> tags.")
