"""Runs the code block of a completion in the grader's own process to see what it prints.

Seen: "reward if the code runs" functions of many notebooks: `exec(code, {})` within `contextlib.redirect_stdout`.
"""

import contextlib
import io
import re

from hone.environments import Rubric, SingleTurnEnv

ROWS = [
    {"question": f"Write Python that prints the sum of the numbers from 1 to {n}.", "answer": str(n * (n + 1) // 2)}
    for n in (10, 14, 20, 33, 41, 57, 64, 72)
]


def correctness(completion, answer):
    blocks = re.findall(r"```(?:python|py)?\s*\n(.*?)```", completion[-1]["content"], re.DOTALL)
    if not blocks:
        return 0.0
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(blocks[-1], {})
    except BaseException:
        return 0.0
    return float(printed.getvalue().strip() == answer)


class Sums(SingleTurnEnv):
    def reference(self, example):
        number = re.search(r"1 to (\d+)", example.prompt[-1]["content"]).group(1)
        return f"```python\nprint(sum(range(1, {number} + 1)))\n```"


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Answer with one ```python block.")
