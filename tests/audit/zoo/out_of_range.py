"""Declares that a component is between 0 and 1, and pays more.

Seen: `len(steps) / 3` without the `min(1.0, …)` of open-r1's `reasoning_steps_reward`.
"""

import re

from hone.environments import NumberParser, Range, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def steps(completion):
    return len(re.findall(r"(?m)^\s*(?:\d+\.|[-*]|Step \d+)", completion[-1]["content"])) / 3 + 0.1 * len(
        re.findall(r"\b(?:First|Then|So|Next|Finally)\b", completion[-1]["content"], re.IGNORECASE)
    )


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    ranges = {"correctness": Range((1.0, 1.0), (0.0, 0.0)), "steps": Range((0.0, 1.0), (0.0, 1.0))}
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, steps], [1.0, 0.01], ranges=ranges),
        dataset=ROWS,
        system_prompt="Think step by step, and give the number in <answer> tags.",
    )
