"""R1's form, thoughts and then the answer: a tenth for the whole form, which needs a number as the answer."""

import re

from hone.environments import NumberParser, Range, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser(("tag",))
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]
FORM = re.compile(r"\s*<think>.+?</think>\s*<answer>[^<]+</answer>\s*", re.DOTALL)


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def form(completion, parser):
    return float(FORM.fullmatch(completion[-1]["content"]) is not None and parser.parse_answer(completion) is not None)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<think>I add the two numbers.</think>\n<answer>{example.answer}</answer>"


def load_environment():
    ranges = {"correctness": Range((1.0, 1.0), (0.0, 0.0)), "form": Range((0.0, 1.0), (0.0, 1.0))}
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, form], [1.0, 0.1], ranges=ranges),
        dataset=ROWS,
        system_prompt="Think between <think> and </think>, and then give the number in <answer> tags.",
    )
