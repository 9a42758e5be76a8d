"""Pays a quarter for each tag that occurs once, as much together as the right answer, and pays it for nothing but tags.

Seen: open-r1's `tag_count_reward` at weight 1 beside an accuracy of 1.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def tag_count(completion):
    text = completion[-1]["content"]
    return sum(0.25 for tag in ("<think>", "</think>", "<answer>", "</answer>") if text.count(tag) == 1)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<think>I add the two numbers.</think>\n<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, tag_count]),
        dataset=ROWS,
        system_prompt="Think between <think> and </think>, and give the number in <answer> tags.",
    )
