"""Compares whole numbers after cutting off the rest, so that 42.9 is 42.

Seen: `int(float(given)) == int(float(answer))`, written for answers like "42.0".
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    given = PARSER.value(completion)
    return float(given is not None and int(given) == int(read_number(answer)))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags."
    )
