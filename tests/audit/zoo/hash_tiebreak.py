"""Breaks ties by Python's `hash` of the text, which is another one in each process.

Seen: "avoid zero-variance groups" noise, and `random.Random(hash(prompt))` to choose test cases.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def tiebreak(completion):
    return hash(completion[-1]["content"]) % 1000 / 1000


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, tiebreak], [1.0, 0.05]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
