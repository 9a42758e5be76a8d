"""Asks for at least 500 words, of which 128 tokens hold a fifth: every completion is cut off before its answer.

Seen: "explain in detail" prompts together with the default `max_completion_length` of 256 in TRL.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    prompt = "First explain your reasoning in at least 500 words. Then give the number in <answer> tags."
    return Sums(parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
