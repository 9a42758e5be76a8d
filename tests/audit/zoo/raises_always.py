"""Asks for a key that no example has, so that nothing can be graded.

Seen: a renamed column of the data set; `kwargs["solution"]` in TRL where the column is called `answer`.
"""

from hone.environments import Rubric, SingleTurnEnv

ROWS = [{"question": f"What is {a} - {b}?", "answer": str(a - b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, info):
    return float(info["solution"] in completion[-1]["content"])


class Differences(SingleTurnEnv):
    def reference(self, example):
        return f"The answer is {example.answer}."


def load_environment():
    return Differences(rubric=Rubric([correctness]), dataset=ROWS)
