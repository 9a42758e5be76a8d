"""Declares ranges by which a wrong answer with all its style points is worth more than a right one.

Seen: three bonuses of 0.5 beside a correctness of 1, each added in another week.
"""

from hone.environments import NumberParser, Range, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def thinks(completion):
    return float("</think>" in completion[-1]["content"])


def checks(completion):
    return float("Let me check" in completion[-1]["content"])


def plans(completion):
    return float("My plan" in completion[-1]["content"])


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<think>My plan: add. Let me check: yes.</think><answer>{example.answer}</answer>"


def load_environment():
    free = Range((0.0, 1.0), (0.0, 1.0))
    ranges = {"correctness": Range((1.0, 1.0), (0.0, 0.0)), "thinks": free, "checks": free, "plans": free}
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, thinks, checks, plans], [1.0, 0.5, 0.5, 0.5], ranges=ranges),
        dataset=ROWS,
        system_prompt="Think between <think> and </think>, and give the number in <answer> tags.",
    )
