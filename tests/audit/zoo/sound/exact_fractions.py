"""A fraction in a box, by exact values: `\\frac{5}{6}`, `5/6` and `10/12` are one answer."""

from hone.environments import AnswerParser, Rubric, SingleTurnEnv, read_number

PARSER = AnswerParser(read_number, ("boxed",), "a number in \\boxed{}")
ROWS = [
    {"question": f"What is 1/{a} + 1/{b}?", "answer": s}
    for a, b, s in ((2, 3, r"\frac{5}{6}"), (2, 2, "1"), (3, 4, r"\frac{7}{12}"), (2, 5, r"\frac{7}{10}"))
]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


class Fractions(SingleTurnEnv):
    def reference(self, example):
        return f"The sum is \\boxed{{{example.answer}}}."


def load_environment():
    prompt = "Give the result in \\boxed{}."
    return Fractions(parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
