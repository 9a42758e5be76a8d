"""Rewards right answers by how short they are, down to -0.5, and wrong ones by at least 0: a long right answer is worth
less than a short wrong one.

Seen: open-r1's `len_reward` (issue 360), from the Kimi k1.5 report.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]
MOST = 2000


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def length(completion, answer):
    share = 0.5 - min(1.0, len(completion[-1]["content"]) / MOST)
    return share if correctness(completion, answer) else min(0.0, share)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, length], [0.0, 1.0], correctness=correctness),
        dataset=ROWS,
        system_prompt="Think step by step, and give the number in <answer> tags.",
    )
