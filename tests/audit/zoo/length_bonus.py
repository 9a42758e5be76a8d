"""Pays a point for each hundred characters, without a limit: a long wrong answer is worth more than a short right one.

Seen: "encourage reasoning" bonuses (`len(text) / 500`), whose runs end at the length limit.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def reasoning_bonus(completion):
    return len(completion[-1]["content"]) / 100


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"I add the two numbers.\n<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, reasoning_bonus]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
