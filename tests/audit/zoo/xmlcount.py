"""Adds up format rewards, each harmless, to more than the right answer is worth.

Seen: the five functions of the first GRPO demo for GSM8K, copied into hundreds of notebooks: `int_reward_func`,
`strict_format_reward_func`, `soft_format_reward_func` and `xmlcount_reward_func` beside the correctness.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def extracted(completion):
    return completion[-1]["content"].split("<answer>")[-1].split("</answer>")[0].strip()


def correctness(completion, answer):
    return 1.0 if extracted(completion) == answer else 0.0


def integer(completion):
    return 0.5 if extracted(completion).isdigit() else 0.0


def soft_format(completion):
    pattern = r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>"
    return 0.5 if re.match(pattern, completion[-1]["content"], re.DOTALL) else 0.0


def strict_format(completion):
    pattern = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n?$"
    return 0.5 if re.match(pattern, completion[-1]["content"], re.DOTALL) else 0.0


def xmlcount(completion):
    tags = ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>")
    return sum(0.125 for tag in tags if completion[-1]["content"].count(tag) == 1)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<reasoning>\nI add the two numbers.\n</reasoning>\n<answer>\n{example.answer}\n</answer>\n"


def load_environment():
    return Sums(
        rubric=Rubric([correctness, integer, soft_format, strict_format, xmlcount]),
        dataset=ROWS,
        system_prompt="Respond as\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>",
    )
