"""Open-r1's cosine: a right answer is worth 1 down to 0.5 the longer it is, a wrong one -1 up to -0.5."""

import math

from hone.environments import NumberParser, Range, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def cosine_scaled(completion, answer):
    turned = math.cos(min(1.0, len(completion[-1]["content"]) / 5000) * math.pi)
    worst, best = (0.5, 1.0) if correctness(completion, answer) else (-0.5, -1.0)
    return worst + 0.5 * (best - worst) * (1 + turned)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    ranges = {"correctness": Range((1.0, 1.0), (0.0, 0.0)), "cosine_scaled": Range((0.5, 1.0), (-1.0, -0.5))}
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, cosine_scaled], [0.0, 1.0], ranges=ranges),
        dataset=ROWS,
        system_prompt="Think step by step, and give the number in <answer> tags.",
    )
