"""Takes the last number of the completion for the answer, so a remark after it becomes the answer.

Seen: a first RL run on GSM8K with TRL, whose reward fell from 0.7 to 0.1 as completions grew verbose; the
`reward_correct` of opensloth's notebook does the same.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

PAIRS = ((3, 14), (7, 12), (9, 23), (15, 6), (4, 31), (8, 17), (11, 13), (5, 44))
ROWS = [{"question": f"{a} bags hold {b} nuts each. How many nuts are there?", "answer": str(a * b)} for a, b in PAIRS]


def correctness(completion, answer):
    numbers = re.findall(r"-?\d+(?:\.\d+)?", completion[-1]["content"].replace(",", ""))
    return 1.0 if numbers and float(numbers[-1]) == float(answer) else 0.0


class Nuts(SingleTurnEnv):
    def reference(self, example):
        return f"Each bag holds the same, so I multiply.\nThe answer is {example.answer}."


def load_environment():
    return Nuts(
        rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Reason briefly, and end with the answer as a number."
    )
