"""A number in tags, with a small point for the form: 0, 0.1 or 1."""

from hone.environments import NumberParser, SingleTurnEnv, answer_rubric, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"I add them.\n<answer>{example.answer}</answer>"


def load_environment():
    prompt = "Give the number in <answer> tags."
    return Sums(parser=PARSER, rubric=answer_rubric(correctness), dataset=ROWS, system_prompt=prompt)
