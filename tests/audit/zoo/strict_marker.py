"""Takes the rest of the line after `Answer:` as it is, so `**Answer:** 42` and `Answer: 42.` are lost.

Seen: verl's `math_dapo.py` (`(?i)Answer\\s*:\\s*([^\\n]+)` and equality after a normalisation for LaTeX).
"""

import re

from hone.environments import Rubric, SingleTurnEnv

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    found = re.findall(r"(?i)Answer\s*:\s*([^\n]+)", completion[-1]["content"])
    return float(bool(found) and found[-1].strip() == answer)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"I add the two numbers.\nAnswer: {example.answer}"


def load_environment():
    prompt = "Solve step by step. The last line should be of the form Answer: $Answer (without quotes)."
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
