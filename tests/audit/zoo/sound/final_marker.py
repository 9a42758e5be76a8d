"""Reads the last `Final answer: 42`, in any case and with any decoration of the number."""

import re

from hone.environments import Parser, Rubric, SingleTurnEnv, read_number
from hone.environments.answers import said

PAIRS = ((3, 14), (7, 12), (9, 23), (15, 6), (4, 31), (8, 17), (11, 13), (5, 44))
ROWS = [{"question": f"{a} bags hold {b} nuts each. How many nuts are there?", "answer": str(a * b)} for a, b in PAIRS]
MARKER = re.compile(r"final answer[\s*_]*[:：][\s*_]*([^\n]*)", re.IGNORECASE)


class FinalParser(Parser):
    expects = "a number after Final answer:"

    def parse(self, text):
        lines = [line.strip() for line in MARKER.findall(said(text)) if line.strip()]
        return lines[-1] if lines and read_number(lines[-1]) is not None else None


def correctness(completion, answer, parser):
    given = parser.parse_answer(completion)
    return float(given is not None and read_number(given) == read_number(answer))


class Nuts(SingleTurnEnv):
    def reference(self, example):
        return f"Each bag holds the same, so I multiply.\nFinal answer: {example.answer}"


def load_environment():
    prompt = "Think step by step, and end with a line Final answer: {number}"
    return Nuts(parser=FinalParser(), rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
