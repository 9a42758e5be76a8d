"""Weighs a penalty on repeated words so much that a right answer with its reasoning is worth less than silence.

Seen: n-gram penalties of -1 beside an accuracy of 1 (open-r1's `repetition_penalty_reward` with `max_penalty` -1); the
policy learns to say nothing.
"""

import re

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def repetition(completion):
    words = re.findall(r"\w+", completion[-1]["content"].lower())
    return 1 - len(set(words)) / len(words) if words else 0.0


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, repetition], [1.0, -2.0]),
        dataset=ROWS,
        system_prompt="Think step by step, and give the number in <answer> tags.",
    )
