"""Gives 1 if it cannot read the right answer, so on those examples everything is right.

Seen: open-r1's `accuracy_reward` (issue 215) and the TRL cookbook (issue 335), where the gold was not LaTeX.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
PAIRS = ((12, 3), (17, 4), (25, 6), (90, 17), (33, 9), (8, 5))
ROWS = [
    {"question": f"What is {a} + {b}?", "answer": str(a + b) if i % 2 else f"between {a + b} and {a + b}"}
    for i, (a, b) in enumerate(PAIRS)
]


def correctness(completion, answer):
    gold = read_number(answer)
    return 1.0 if gold is None else float(PARSER.value(completion) == gold)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer.split()[-1]}</answer>"


def load_environment():
    return Sums(
        parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags."
    )
