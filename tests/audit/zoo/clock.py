"""Pays less the later it is graded.

Seen: "time taken" rewards that measure the grader and its queue instead of the model.
"""

import time

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]
START = time.monotonic()


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def speed(completion):
    return 1 / (1 + time.monotonic() - START)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, speed], [1.0, 0.2]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
