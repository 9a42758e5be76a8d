"""Evaluates an expression of checked characters and numbers, but without a limit: `44**35**19` never returns.

Seen: TinyZero's countdown reward, and the graders of most of its replications.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

ROWS = [
    {"question": f"Using the numbers {nums}, make {target}.", "answer": s, "info": {"nums": nums, "target": target}}
    for nums, target, s in (
        ([44, 19, 35], 98, "44 + 19 + 35"),
        ([12, 5, 30], 47, "12 + 5 + 30"),
        ([50, 25, 10], 65, "50 + 25 - 10"),
        ([7, 40, 13], 60, "7 + 40 + 13"),
        ([81, 11, 22], 48, "81 - 11 - 22"),
    )
]


def correctness(completion, info):
    found = re.findall(r"<answer>(.*?)</answer>", completion[-1]["content"], re.DOTALL)
    if not found:
        return 0.0
    equation = found[-1].strip()
    if sorted(int(n) for n in re.findall(r"\d+", equation)) != sorted(info["nums"]):
        return 0.0
    if not re.match(r"^[\d+\-*/().\s]+$", equation):
        return 0.0
    try:
        return float(abs(eval(equation, {"__builtins__": None}, {}) - info["target"]) < 1e-5)
    except Exception:
        return 0.0


class Countdown(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    prompt = "Use each number once, with + - * /. Give the expression alone in <answer> tags."
    return Countdown(rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
