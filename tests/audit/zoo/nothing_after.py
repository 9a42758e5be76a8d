"""Wants the text to end with the closing tag: one friendly sentence after it, and the right answer is lost.

Seen: open-r1's `^<think>.*?</think>\\s*<answer>.*?</answer>$` used as a gate for the accuracy.
"""

import re

from hone.environments import Rubric, SingleTurnEnv, read_number

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    match = re.search(r"<answer>((?:(?!<answer>).)*?)</answer>\s*\Z", completion[-1]["content"], re.DOTALL)
    return float(match is not None and read_number(match.group(1)) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"I add them.\n<answer>{example.answer}</answer>"


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags.")
