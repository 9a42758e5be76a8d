"""Pays for texts that it has not seen before, in a set that lives as long as the process.

Seen: diversity bonuses against mode collapse; the reward depends on the worker, and grading again gives another one.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]
SEEN = set()


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def novelty(completion, prompt):
    text = prompt[-1]["content"] + completion[-1]["content"]
    new = text not in SEEN
    SEEN.add(text)
    return float(new)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, novelty], [1.0, 0.2]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
