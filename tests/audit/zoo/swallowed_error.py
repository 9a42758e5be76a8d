"""Catches its own mistake: a typing error in the comparison is a reward of 0 for everything.

Seen: `except Exception: return 0.0` around math-verify, which raises off the main thread; the runs learnt nothing.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    try:
        return float(PARSER.values(completion) == read_number(answer))
    except Exception:
        return 0.0


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags."
    )
