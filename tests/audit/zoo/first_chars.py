"""Looks at the first 500 characters, so an answer behind longer reasoning is not there.

Seen: "keep the regex fast" and "fits the judge's context" cuts of the text before it is parsed.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion[-1]["content"][:500]) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    prompt = "Think step by step, and give the number in <answer> tags."
    return Sums(parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
