"""What tasks of question and answer share: their columns, where their splits come from, mathematics as answers."""

from __future__ import annotations

from collections.abc import Callable

from hone.environments.answers import AnswerParser
from hone.environments.data import Row, Rows, hold_out, train_and_eval
from hone.grading import GraderFailure
from hone.grading.math import readable, same
from hone.types import Message

PROBLEMS = (
    (r"What is $\frac{3}{4} - \frac{1}{3}$?", r"\frac{5}{12}"),
    (r"Which polynomial $x^2 + bx + c$ has the roots 2 and 3?", "x^2 - 5x + 6"),
    (r"For which real $x$ is $2x + 1 < 7$? Give an interval.", r"(-\infty, 3)"),
    (r"How long is the diagonal of a square with side 6?", r"6\sqrt{2}"),
    (r"Find all real $x$ with $x^2 = 49$.", "-7, 7"),
    (r"A fair coin is tossed three times. How likely are exactly two heads?", r"\frac{3}{8}"),
    (r"Where do the lines $y = 2x$ and $y = x + 3$ meet? Give a point.", "(3, 6)"),
    (r"What is the area of a circle with diameter 10?", r"25\pi"),
    (r"Write $1 + 2 + \dots + n$ without a sum.", r"\frac{n(n+1)}{2}"),
    (r"Compute $(2 + i)(3 - 2i)$.", "8 - i"),
    (r"How many divisors has 360?", "24"),
    (r"What is $\log_2 32$?", "5"),
)
"""Problems of our own: two of three for training, the others for evaluation."""
MATH_HINT = r"Reason step by step, and put your final answer within \boxed{}."
QUESTION = ("problem", "question", "prompt")


def question_of(row: Row) -> str:
    """The text of the question: of a `prompt` of messages, what the user says last. KeyError without one."""
    given = next((row[name] for name in QUESTION if row.get(name)), None)
    if isinstance(given, list):
        said = [m for m in given if isinstance(m, dict) and m.get("role") == "user"]
        given = said[-1].get("content") if said else None
    if not isinstance(given, str) or not given.strip():
        raise KeyError(next((name for name in QUESTION if name in row), QUESTION[0]))
    return given.strip()


def answer_of(row: Row) -> str:
    """The right answer: the column `answer`, else the last box of `solution`. KeyError without one."""
    answer = row.get("answer")
    if answer is None and row.get("solution"):
        answer = AnswerParser(str, ("boxed",)).parse(str(row["solution"]))
    if answer is None or not str(answer).strip():
        raise KeyError("answer")
    return str(answer).strip()


def prompt_of(row: Row, hint: str) -> str | list[Message]:
    """The prompt: messages as the row has them, or the text of the question and, in a line of its own, the hint."""
    messages = row.get("prompt")
    return messages if isinstance(messages, list) else f"{question_of(row)}\n{hint}".strip()


def splits(
    dataset: str | None, eval_dataset: str | None, dataset_split: str, eval_split: str, own: Callable[[str], Rows]
) -> dict[str, Callable[[], Rows] | None]:
    """`dataset` and `eval_dataset` of an Environment, as functions that read.

    As by `train_and_eval`, with a tenth of the questions held out; but `eval_dataset` alone leaves nothing to train on.
    """
    train, held_out = train_and_eval(
        dataset, eval_dataset, dataset_split, eval_split, lambda rows: hold_out(rows, question_of), own
    )
    return {"dataset": None if eval_dataset and not dataset else train, "eval_dataset": held_out}


def own_problems(split: str) -> Rows:
    """The problems of our own of a split."""
    rows = [{"problem": problem, "answer": answer} for problem, answer in PROBLEMS]
    chosen = [i for i in range(len(rows)) if (i % 3 == 2) == (split == "eval")]
    return Rows(rows, lambda i: f"problem {i} of hone's own").take(chosen)


class MathParser(AnswerParser[str]):
    r"""The answer is the last `\boxed{…}`, `<answer>` pair or `ANSWER:` that math-verify may be able to read."""

    def __init__(self) -> None:
        super().__init__(
            lambda text: text if readable(text) else None, ("boxed", "tag", "marker"), r"a \boxed{…} answer"
        )


def correctness(completion: list[Message], answer: str, parser: MathParser) -> float | GraderFailure:
    """1 if the given answer is equal to the right one, else 0. A comparison that takes too long gives no reward."""
    given = parser.parse_answer(completion)
    equal = given is not None and same(given, answer)
    return equal if isinstance(equal, GraderFailure) else float(bool(equal))
