"""Shared parts of question-and-answer tasks: columns, splits, and mathematics as answers."""

from __future__ import annotations

import re
from collections.abc import Callable

from hone.environments.data import DataSource, Row, Rows, hold_out, train_and_eval
from hone.environments.numbers import find_number, same_number
from hone.environments.parsers import REMARK, Ambiguous, AnswerParser
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
"""Built-in problems: every third is for evaluation, the others for training."""
MATH_HINT = r"Reason step by step, and put your final answer within \boxed{}."
_LATEX = re.compile(r"\\(?:text\w*|mathrm|mathbf|mbox)\s*\{[^{}]*\}|\\[A-Za-z]+")
_SYMBOL = re.compile(r"[\d\\+=<>^|π∞√]|\A\W*[^\W\d_]{1,3}\W*\Z")
_FUNCTIONS = "sqrt|sinh|cosh|tanh|arcsin|arccos|arctan|infty|infinity|units?|degrees?"
_PROSE = re.compile(
    rf"(?!(?:{_FUNCTIONS})\b)[^\W\d_]{{4,}}"
    r"|(?<![^\W\d_])(?:the|is|it|its|of|in|to|we|as|at|be|by|if|no|not|my|so|was|are|for|you|can|but|has|how|all|any|one|two"
    r"|box|see|yes|our|out|up|on|do|now|per|than)(?![^\W\d_])",
    re.IGNORECASE,
)
QUESTION = ("problem", "question", "prompt")


def question_of(row: Row) -> str:
    """Return the question, or the user's last text if `prompt` is messages. KeyError if there is none."""
    given = next((row[name] for name in QUESTION if row.get(name)), None)
    if isinstance(given, list):
        asked = [m for m in given if isinstance(m, dict) and m.get("role") == "user"]
        given = asked[-1].get("content") if asked else None
    if not isinstance(given, str) or not given.strip():
        raise KeyError(next((name for name in QUESTION if name in row), QUESTION[0]))
    return given.strip()


def answer_of(row: Row) -> str:
    r"""Return the right answer: `answer`, or else the last `\boxed{…}` in `solution`. KeyError if there is none."""
    answer = row.get("answer")
    if answer is None and row.get("solution"):
        answer = AnswerParser(forms=("boxed",)).parse(str(row["solution"]))
    if answer is None or not str(answer).strip():
        raise KeyError("answer")
    return str(answer).strip()


def prompt_of(row: Row, hint: str) -> str | list[Message]:
    """Return the prompt: messages as the row has them, or the question with the hint in the next line."""
    messages = row.get("prompt")
    return messages if isinstance(messages, list) else f"{question_of(row)}\n{hint}".strip()


def splits(
    dataset: str | None, eval_dataset: str | None, dataset_split: str, eval_split: str, builtin: Callable[[str], Rows]
) -> dict[str, DataSource | None]:
    """Return an Environment's data sets. Without `eval_dataset`, a tenth of the questions is held out."""
    made = train_and_eval(
        dataset, eval_dataset, dataset_split, eval_split, lambda rows: hold_out(rows, question_of), builtin
    )
    return made | ({"dataset": None} if eval_dataset and not dataset else {})


def own_problems(split: str) -> Rows:
    rows = [{"problem": problem, "answer": answer} for problem, answer in PROBLEMS]
    chosen = [i for i in range(len(rows)) if (i % 3 == 2) == (split == "eval")]
    return Rows(rows, lambda i: f"problem {i} of hone's own").take(chosen)


class MathParser(AnswerParser[str]):
    r"""The answer is the last `\boxed{…}`, `<answer>` pair or `ANSWER:` that math-verify may be able to read.

    Prose after `ANSWER:`, and mathematics after `the answer is`, is read only if there is no other answer.
    """

    def __init__(self) -> None:
        forms = ("boxed", "tag", "marker", "sentence")
        super().__init__(_readable, forms, r"a \boxed{…} answer", _formula)

    def parse(self, text: str) -> str | None:
        return self.value(text)


def _readable(text: str) -> str | None:
    return text if readable(text) else None


def _formula(line: str) -> str | None:
    """Return the line if it is a number, with or without a unit, or a formula. `3 or 4 apples` raises Ambiguous."""
    line = re.sub(r"(?:\*\*|__|`|\$\$|\\\])+(?=[.\s]*\Z)", "", line).strip()
    if r"\boxed" in line:
        return None
    try:
        number = find_number(line)
    except Ambiguous:
        if REMARK.search(line) and not _is_formula(line):
            raise
        return _readable(line)
    return line if number is not None else _readable(line) if _is_formula(line) else None


def _is_formula(text: str) -> bool:
    return bool(_SYMBOL.search(text)) and not _PROSE.search(_LATEX.sub(" ", text))


def correctness(completion: list[Message], answer: str, parser: MathParser) -> float | GraderFailure:
    """Return 1 for an answer equal to the right one, else 0; a failure if the comparison takes too long."""
    given = parser.parse_answer(completion)
    bare = not re.search(r"[^\W\d_]", re.sub(r"\\[A-Za-z]+", "", answer))
    if bare and same_number(given, answer):
        return 1.0
    equal = given is not None and same(given, answer)
    return equal if isinstance(equal, GraderFailure) else float(bool(equal))
