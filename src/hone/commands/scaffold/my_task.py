"""my-task: put the letters of a made-up word in alphabetical order.

    hone eval my-task -m MODEL -n 20

This works and trains as it is. To make it your task, change what is marked CHANGE; the rest can stay.
"""

from __future__ import annotations

import functools
import zlib

import numpy as np

from hone.environments import AnswerParser, SingleTurnEnv, answer_rubric, generated_rows
from hone.types import Example, Message

LETTERS = list("abcdefghijklmnopqrstuvwxyz")
PROMPT = "Put these letters in alphabetical order: {letters}"  # CHANGE: the question, with columns of a row
FORMAT_HINT = " Give the answer in <answer> tags, such as <answer>abc</answer>."  # CHANGE: the example


def read_answer(text: str) -> str | None:
    """CHANGE: return the answer, right or wrong, in lower case without quotes and emphasis; None if there is none."""
    word = text.strip(" .*_`'\"").lower()
    return word if word.isalpha() else None


# Finds the last well-formed answer in <answer> tags, \boxed{} or after ANSWER: (for numbers there is NumberParser).
PARSER = AnswerParser(read_answer)


# Reward functions run in separate processes, with a time limit; with `@inline`, in hone's process.
def correctness(completion: list[Message], answer: str) -> float:
    """CHANGE: return 1 if the answer is right, else 0. A wrong answer that is well-formed gets a reward of 0.1."""
    return float(PARSER.value(completion) == answer)


def make_row(split: str, rng: np.random.Generator) -> dict[str, str]:
    """CHANGE: draw one problem from `rng`. A tenth of all problems, chosen by their letters, is only for "eval"."""
    while True:
        letters = "".join(rng.choice(LETTERS, size=rng.integers(3, 8)))
        held_out = zlib.crc32(letters.encode()) % 10 == 0
        if held_out == (split == "eval"):
            return {"letters": letters}


class MyTask(SingleTurnEnv):
    """The task. A row has the column `letters`."""

    def __init__(self, *, prompt: str, demo_noise: float, **kwargs) -> None:
        super().__init__(id="my-task", parser=PARSER, rubric=answer_rubric(correctness), **kwargs)
        self.prompt, self.demo_noise = prompt, demo_noise

    def format_row(self, row: dict[str, str]) -> dict:
        """CHANGE: return a row's question and right answer; `info` is for reward functions and demonstrations."""
        letters = row["letters"]
        question = self.prompt.replace("{letters}", letters)
        return {"question": question, "answer": "".join(sorted(letters)), "info": {"letters": letters}}

    def reference(self, example: Example) -> str:
        """Return a completion that gets the full reward."""
        return PARSER.wrap(example.answer)

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        """CHANGE: return a text for SFT to imitate. `demo_noise` 1 replaces each letter with 10 % probability."""
        rate = 0.1 * self.demo_noise
        return PARSER.wrap("".join(str(rng.choice(LETTERS)) if rng.random() < rate else c for c in example.answer))


def load_environment(
    num_train_examples: int = 50_000,
    num_eval_examples: int = 1_000,
    seed: int = 0,
    prompt: str = PROMPT,
    format_hint: bool = True,
    demo_noise: float = 0.0,
) -> SingleTurnEnv:
    """Return my-task on generated problems. `format_hint` adds the answer format to the prompt."""

    def rows(split: str, count: int):
        return generated_rows(functools.partial(make_row, split), count, seed=seed, env_id="my-task", split=split)

    return MyTask(
        prompt=prompt + FORMAT_HINT * format_hint,
        demo_noise=demo_noise,
        dataset=lambda: rows("train", num_train_examples),  # for rows of your own: lambda: load_rows("rows.jsonl")
        eval_dataset=lambda: rows("eval", num_eval_examples),
    )
