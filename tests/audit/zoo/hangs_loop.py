"""Looks for the end of a box by counting braces, and never stops where the box is not closed.

Seen: hand-written brace matching (`remove_boxed`, `last_boxed_only_string`) whose loop does not advance at the end.
"""

from hone.environments import Rubric, SingleTurnEnv, read_number

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def last_box(text):
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth, end = 0, start + len("\\boxed")
    while True:
        character = text[end : end + 1]
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start + len("\\boxed{") : end]
        end += 1


def correctness(completion, answer):
    return float(read_number(last_box(completion[-1]["content"])) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"The answer is \\boxed{{{example.answer}}}."


def load_environment():
    return Sums(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in \\boxed{}.")
