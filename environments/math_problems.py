r"""math-problems: mathematics from files or from sets on the hub, such as MATH-500; 1 if the answer is right, else 0.

Answers are compared as mathematics, by math-verify: `\frac{1}{2}`, `0.5` and `1/2` are one answer. Read is the last
`\boxed{…}`, `<answer>` pair or `ANSWER:` outside of `<think>`; prose after `answer:` replaces none of them. What is
equal is right, also if it was not worked out: `\frac{3}{4} - \frac{1}{3}` for `\frac{5}{12}`.

    vf-eval math-problems -a '{"eval_dataset": "HuggingFaceH4/MATH-500"}' -m MODEL -b http://localhost:8000/v1

Without a data set there are twelve problems of our own, enough to see that everything works.
"""

from __future__ import annotations

from typing import Any

from hone.environments import Range, Rubric, SingleTurnEnv
from hone.environments.data import Row
from hone.environments.problems import MATH_HINT, MathParser, answer_of, correctness, own_problems, prompt_of, splits
from hone.types import Example

PARSER = MathParser()


class MathProblems(SingleTurnEnv):
    """Rows have `problem`, `question` or `prompt`, and `answer`, or a `solution` whose last box is the answer."""

    def __init__(self, *, hint: str, **kwargs: Any) -> None:
        rubric = Rubric([correctness], ranges={"correctness": Range(right=(1.0, 1.0), wrong=(0.0, 0.0))})
        super().__init__(id="math-problems", parser=PARSER, rubric=rubric, **kwargs)
        self.hint = hint

    def format_row(self, row: Row) -> Row:
        return {"prompt": prompt_of(row, self.hint), "answer": answer_of(row), "info": row.get("info")}

    def reference(self, example: Example) -> str:
        return PARSER.wrap(example.answer)


def load_environment(
    dataset: str | None = None,
    eval_dataset: str | None = None,
    dataset_split: str = "train",
    eval_split: str = "test",
    format_hint: bool = True,
    system_prompt: str = "",
) -> SingleTurnEnv:
    """Problems from `dataset` and `eval_dataset`: a JSONL or Parquet file, a folder of them, or a hub id and its split.

    Of `dataset` alone a tenth is held out; `eval_dataset` alone is for evaluation. `format_hint` adds to each
    question how to answer.
    """
    return MathProblems(
        hint=MATH_HINT * format_hint,
        system_prompt=system_prompt,
        **splits(dataset, eval_dataset, dataset_split, eval_split, own_problems),
    )
