"""Pays tags and words of reasoning as much as the right answer: a bare right answer earns what a wrong one with all of
them does.

Seen: notebooks that take over a tag count and a `reasoning_steps_reward` beside an accuracy of 1, as open-r1 has them.
"""

import re

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def tags(completion, parser):
    text = completion[-1]["content"]
    found = sum(tag in text for tag in ("<think>", "</think>", "<answer>", "</answer>"))
    return 0.25 * found if parser.value(completion) is not None else 0.0


def step_words(completion, parser):
    words = re.search(r"\b(?:step|first|then)\b", completion[-1]["content"], re.IGNORECASE)
    return float(words is not None and parser.value(completion) is not None)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<think>First step: I add the two numbers.</think>\n<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, tags, step_words], [1.0, 1.0, 0.5]),
        dataset=ROWS,
        system_prompt="Think step by step between <think> and </think>, and give the number in <answer> tags.",
    )
