"""Takes up to 0.3 for length from right and wrong alike, so that right stays above wrong."""

from hone.environments import NumberParser, Range, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def length(completion):
    return min(1.0, len(completion[-1]["content"]) / 4000)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    ranges = {"correctness": Range((1.0, 1.0), (0.0, 0.0)), "length": Range((0.0, 1.0), (0.0, 1.0))}
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, length], [1.0, -0.3], ranges=ranges),
        dataset=ROWS,
        system_prompt="Think step by step, and give the number in <answer> tags.",
    )
