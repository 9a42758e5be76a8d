r"""math-problems: mathematics from files or from sets on the hub, such as MATH-500; 1 if the answer is right, else 0.

Answers are compared as mathematics, by math-verify: `\frac{1}{2}`, `0.5` and `1/2` are one answer. Read is the last
`\boxed{…}`, `<answer>` pair or `ANSWER:` outside of `<think>`. What is equal is right, also if it was not worked out:
`\frac{3}{4} - \frac{1}{3}` for `\frac{5}{12}`.

    vf-eval math-problems -a '{"eval_dataset": "HuggingFaceH4/MATH-500"}' -m MODEL -b http://localhost:8000/v1

Without a data set there are twelve problems of our own, enough to see that everything works.
"""

from __future__ import annotations

from hone.environments import Range, Rubric, SingleTurnEnv
from hone.environments.data import Row
from hone.environments.problems import MathParser, answer_of, correct, own_problems, prompt_of, splits
from hone.types import Example

SYSTEM_PROMPT = r"Reason step by step, and put your final answer within \boxed{}."
PARSER = MathParser()


class MathProblems(SingleTurnEnv):
    """Rows have `problem`, `question` or `prompt`, and `answer`, or a `solution` whose last box is the answer."""

    def format_row(self, row: Row) -> Row:
        return {"prompt": prompt_of(row), "answer": answer_of(row), "info": row.get("info")}

    def reference(self, example: Example) -> str:
        return PARSER.wrap(example.answer)


def load_environment(
    dataset: str | None = None,
    eval_dataset: str | None = None,
    dataset_split: str = "train",
    eval_split: str = "test",
    system_prompt: str = SYSTEM_PROMPT,
) -> SingleTurnEnv:
    """Problems from `dataset` and `eval_dataset`: a JSONL or Parquet file, a folder of them, or a hub id and its split.

    Of `dataset` alone a tenth is held out; `eval_dataset` alone is for evaluation. An empty `system_prompt` leaves the
    instruction out.
    """
    return MathProblems(
        id="math-problems",
        parser=PARSER,
        rubric=Rubric([correct], ranges={"correct": Range(right=(1.0, 1.0), wrong=(0.0, 0.0))}),
        system_prompt=system_prompt or None,
        **splits(dataset, eval_dataset, dataset_split, eval_split, own_problems),
    )
