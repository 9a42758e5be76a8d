"""Allows one percent, which is 480 of 48,000: a rounded guess is right.

Seen: `math.isclose(a, b, rel_tol=1e-2)` for numbers with units; unsloth's notebooks pay for a ratio of 0.9 to 1.1.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
PAIRS = ((1200, 40), (1701, 31), (2504, 67), (9001, 17), (4100, 29), (3050, 15))
ROWS = [{"question": f"What is {a} * {b}?", "answer": str(a * b)} for a, b in PAIRS]


def correctness(completion, answer):
    given, gold = PARSER.value(completion), read_number(answer)
    return float(given is not None and abs(given - gold) <= abs(gold) / 100)


class Products(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Products(
        parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags."
    )
