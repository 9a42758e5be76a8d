"""gsm8k: word problems of everyday arithmetic, with a number as the answer.

`mode = "two_part"` (the default): the answer is the number after `ANSWER:`, so that no other number in a long solution
can be taken for it. The parts add up: 0.1 for the form, 1 for the right number. `mode = "sparse"`: the last number of
the completion is the answer, and 1 the reward for a right one. It breaks where a solution goes on after its answer:
watch `outcome/wrong` while completions grow longer.

    hone eval gsm8k -m outputs/weights/step_100 -n 200

Problems are made up from a seed, in the form of GSM8K, unless `dataset` names files or `openai/gsm8k` on the hub.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from hone.environments import (
    LastNumberParser,
    NumberParser,
    Parser,
    Range,
    Rubric,
    SingleTurnEnv,
    inline,
    read_number,
    same_number,
)
from hone.environments.data import Count, Noise, Row
from hone.environments.problems import answer_of, prompt_of, question_of, splits, word_problems
from hone.environments.rubric import format
from hone.errors import UserError
from hone.types import Example, Message

HUB, CONFIG = "openai/gsm8k", "openai/gsm8k:main"
HINTS = {
    "two_part": "Think step by step, and end with a line ANSWER: {number}",
    "sparse": "Think step by step, and end with the answer as a number.",
}
PARSERS: dict[str, Parser] = {"two_part": NumberParser(("marker",)), "sparse": LastNumberParser()}
CALCULATION = re.compile(r"<<[^<>]*>>")
RIGHT_OR_WRONG = Range(right=(1.0, 1.0), wrong=(0.0, 0.0))


@inline
def correctness(completion: list[Message], answer: str, parser: Parser) -> float:
    """Return 1 if the given number is the right one, else 0."""
    given = parser.parse_answer(completion)
    return float(given is not None and same_number(given, answer))


class GSM8K(SingleTurnEnv):
    """Rows have `question` and `answer`: the solution with a last line `#### 42`, or just the number."""

    def __init__(self, *, mode: str, hint: str, demo_noise: float, **kwargs: Any) -> None:
        super().__init__(id="gsm8k", parser=PARSERS[mode], rubric=_rubric(mode), **kwargs)
        self.mode, self.hint, self.demo_noise = mode, hint, demo_noise

    def format_row(self, row: Row) -> Row:
        solution, _, number = answer_of(row).rpartition("####")
        if read_number(number) is None:
            raise UserError(
                f"gsm8k: the answer {number.strip()!r} of {question_of(row)[:60]!r} is no number; correct it"
            )
        return {
            "prompt": prompt_of(row, self.hint),
            "answer": number.strip(),
            "info": {"solution": CALCULATION.sub("", solution).strip()},
        }

    def reference(self, example: Example) -> str:
        """Return the solution as the data has it, and the answer in the form that is asked for."""
        return self._written(example, example.answer, self.mode == "two_part")

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        """Return the reference as an unreliable teacher would write it.

        At `demo_noise` 1, 30 % of the answers lack their form and 30 % are 1 to 10 off; both scale with it.
        """
        plain, wrong = rng.random(2) < 0.3 * self.demo_noise
        number = read_number(example.answer)
        assert number is not None
        answer = str(number + int(rng.integers(1, 11))) if wrong else example.answer
        return self._written(example, answer, self.mode == "two_part" and not plain)

    def _written(self, example: Example, answer: str, marked: bool) -> str:
        last = f"ANSWER: {answer}" if marked else f"The answer is {answer}."
        return f"{example.info['solution']}\n{last}".strip()


def load_environment(
    mode: str = "two_part",
    dataset: str | None = None,
    eval_dataset: str | None = None,
    dataset_split: str = "train",
    eval_split: str = "test",
    num_train_examples: Count = 7_500,
    num_eval_examples: Count = 1_000,
    seed: int = 0,
    format_hint: bool = True,
    system_prompt: str = "",
    demo_noise: Noise = 0.0,
) -> SingleTurnEnv:
    """Return gsm8k on made-up problems, or those of `dataset` and `eval_dataset`: files, folders or hub ids.

    `openai/gsm8k` brings its test split; of another `dataset` alone a tenth is held out. `format_hint` adds to each
    question how to answer.
    """
    if mode not in PARSERS:
        raise UserError(f"gsm8k: mode is {mode!r}; it must be 'two_part' (ANSWER: 42) or 'sparse' (the last number)")
    counts = {"train": num_train_examples, "eval": num_eval_examples}
    if dataset == HUB:
        dataset, eval_dataset = CONFIG, eval_dataset or CONFIG
    return GSM8K(
        mode=mode,
        hint=HINTS[mode] * format_hint,
        demo_noise=demo_noise,
        system_prompt=system_prompt,
        **splits(
            dataset,
            CONFIG if eval_dataset == HUB else eval_dataset,
            dataset_split,
            eval_split,
            lambda split: word_problems(counts[split], seed=seed, env_id="gsm8k", split=split),
        ),
    )


def _rubric(mode: str) -> Rubric:
    if mode == "sparse":
        return Rubric([correctness], ranges={"correctness": RIGHT_OR_WRONG})
    ranges = {"format": Range(right=(1.0, 1.0), wrong=(1.0, 1.0)), "correctness": RIGHT_OR_WRONG}
    return Rubric([format, correctness], [0.1, 1.0], correctness=correctness, ranges=ranges)
