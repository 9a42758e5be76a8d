"""Takes the group of a regular expression that need not have matched: AttributeError on every text without the tag.

Seen: `re.search(...).group(1)` in a good part of public reward functions; in TRL it ends the run.
"""

import re

from hone.environments import Rubric, SingleTurnEnv, read_number

ROWS = [{"question": f"What is {a} * {b}?", "answer": str(a * b)} for a, b in ((12, 3), (7, 4), (25, 6), (9, 17))]


def correctness(completion, answer):
    given = re.findall(r"<answer>.*?</answer>", completion[-1]["content"], re.DOTALL)[-1:]
    given = re.search(r"<answer>(.*?)</answer>", "".join(given), re.DOTALL).group(1)
    return float(read_number(given) == read_number(answer))


class Products(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Products(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags.")
