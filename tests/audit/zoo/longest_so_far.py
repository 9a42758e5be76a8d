"""Scales a bonus by the longest completion that this process has seen: what came before changes the reward.

Seen: running normalisation ("divide by the maximum so far") inside a reward function.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]
LONGEST = [1]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def brevity(completion):
    length = len(completion[-1]["content"])
    LONGEST[0] = max(LONGEST[0], length)
    return 1 - length / LONGEST[0]


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, brevity], [1.0, 0.2]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
