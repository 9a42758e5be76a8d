"""Gives the format point to anything between the tags.

Seen: TinyZero pays 0.1 for `<answer>` with garbage in it; open-r1's `format_reward` and Soup's `format` (issue 814) pay
for `<think></think>` around nothing.
"""

import re

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def format(completion):
    return float(re.search(r"<answer>.*?</answer>", completion[-1]["content"], re.DOTALL) is not None)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, format], [0.9, 0.1]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
