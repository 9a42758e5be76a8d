"""Asks for a box and reads tags: a model that does as it is told never scores.

Seen: a prompt template of one recipe with the reward of another; verl's gsm8k wants `####`, Qwen's own prompt a box.
"""

from hone.environments import Rubric, SingleTurnEnv, TagParser, read_number

PARSER = TagParser("answer")
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    given = PARSER.parse_answer(completion)
    return float(given is not None and read_number(given) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness]),
        dataset=ROWS,
        system_prompt="Please reason step by step, and put your final answer within \\boxed{}.",
    )
