"""The first difference between two records of the same step.

Quantities are compared in the order of a step (`QUANTITIES`), so the first difference causes the others. Among metrics,
gradient norm and loss come first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

from hone.runs.metrics import METRICS

Row = dict[str, Any]
"""One completion, with the columns of `hone.runs.rollouts.schema` as plain Python values."""

ROW_COLUMNS = {
    "tokens": {"token_ids": "token", "sampled_mask": "sampled_mask of token"},
    "kept ids": {"kept_counts": "the number of ids at token", "kept_ids": "kept id"},
    "logprobs": {"logprobs": "the logprob of token", "teacher_logprobs": "the teacher's logprob of token"},
    "rewards": {"components": "component", "outcome": "the outcome", "reward": "the reward"},
    "rollouts": {
        name: f"the column {name}"
        for name in (
            *("example_id", "versions", "stop_reason", "state", "prompt", "text", "completion", "answer", "info"),
            "weights",
        )
    },
    "advantages": {"advantage": "the advantage", "call_advantages": "the advantage of call"},
}
"""For each quantity, columns of a completion and their names in messages. Without `detail`: tracebacks name folders."""
QUANTITIES = ("initial weights", "order", "environment", *ROW_COLUMNS, "evaluation", "metrics", "weights")
NOTHING = "nothing"
"""Shown for a value that one of two records lacks."""
TOLERANCES = {metric.name: metric.tolerance for metric in METRICS if metric.tolerance != 0}
"""For each metric that several ranks round differently, the allowed multiple of `limit`; None if it is not compared."""


@dataclass(frozen=True)
class StepRecord:
    """The record of step N; unknown fields are None. `before` and `after` are the fingerprints of versions N and N + 1.
    `evals` are the rows of `evals/step_N.jsonl`.
    """

    step: int
    rows: Sequence[Row] | None = None
    metrics: Mapping[str, Any] | None = None
    before: str | None = None
    after: str | None = None
    evals: Sequence[Row] | None = None


@dataclass(frozen=True)
class Difference:
    """A difference of two records: `what` differs, with the values `first` and `second`."""

    step: int
    quantity: str
    what: str
    first: Any
    second: Any

    def sentence(self, first: str = "A", second: str = "B") -> str:
        """Return a text such as `step 3, tokens: token 17 of sample 3-9-2 is 41 in A and 57 in B`."""
        values = f"{_short(self.first)} in {first} and {_short(self.second)} in {second}"
        return f"step {self.step}, {self.quantity}: {self.what} is {values}"

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"first": _short(self.first), "second": _short(self.second)}


def first_difference(first: StepRecord, second: StepRecord, limit: float = 0.0) -> Difference | None:
    """Return the first difference of two records of a step; None if everything that both have is equal.

    `limit` is for replaying a run of several ranks in one process, where sums round differently. If it is not 0,
    weights are not compared, and metrics of training may differ by up to `limit`, relative to their size.
    """
    assert first.step == second.step
    return next(_differences(first, second, limit), None)


def _differences(first: StepRecord, second: StepRecord, limit: float) -> Iterator[Difference]:
    step = first.step
    if not limit and first.before and second.before and first.before != second.before:
        what = f"the fingerprint of version {step}, which the step begins with,"
        yield Difference(step, "initial weights", what, first.before, second.before)
    if first.rows is not None and second.rows is not None:
        yield from _compare_rows(step, first.rows, second.rows)
    if first.evals is not None and second.evals is not None:
        for row, other in zip_longest(first.evals, second.evals, fillvalue={}):
            sample = row or other
            what = f"{{}} of completion {sample.get('rollout')} of example {sample.get('example')}"
            one, two = ({name: value for name, value in one.items() if name != "detail"} for one in (row, other))
            yield from _compare(step, "evaluation", what, one, two)
    if first.metrics is not None and second.metrics is not None:
        most_telling = {"grad_norm": NOTHING, "loss": NOTHING}
        yield from _compare(step, "metrics", "{}", most_telling | {**first.metrics}, {**second.metrics}, limit)
    if not limit and first.after and second.after and first.after != second.after:
        what = f"the fingerprint of version {step + 1}, which the step makes,"
        yield Difference(step, "weights", what, first.after, second.after)


def _compare_rows(step: int, first: Sequence[Row], second: Sequence[Row]) -> Iterator[Difference]:
    examples, others = (
        {row["draw"]: row["example_id"] for row in sorted(reversed(rows), key=lambda row: row["draw"])}
        for rows in (first, second)
    )
    yield from _compare(step, "order", "the example of draw {}", examples, others)
    ids, others = ({index: row["sample_id"] for index, row in enumerate(rows)} for rows in (first, second))
    yield from _compare(step, "tokens", "the sample in row {}", ids, others)
    unequal = [(row, other) for row, other in zip(first, second, strict=True) if row != other]
    for quantity, columns in ROW_COLUMNS.items():
        for row, other in unequal:
            if quantity == "tokens":
                yield from _compare_environment(step, row, other)
            mine, theirs = _named_values(row, columns), _named_values(other, columns)
            yield from _compare(step, quantity, f"{{}} of sample {row['sample_id']}", mine, theirs)


def _named_values(row: Row, columns: Mapping[str, str]) -> dict[str, Any]:
    return {name: value for column, what in columns.items() for name, value in _named(what, row.get(column))}


def _named(what: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values of a column with their names: each item of a list, each entry of a mapping (given as pairs)."""
    if not isinstance(value, list):
        yield what, value
        return
    for name, item in sorted(value) if value and isinstance(value[0], tuple) else enumerate(value):
        yield f"{what} {name}", item


def _compare_environment(step: int, row: Row, other: Row) -> Iterator[Difference]:
    """Yield the environment's messages that differ, if the first token that differs was not sampled by the model."""
    pairs = enumerate(zip_longest(row["token_ids"], other["token_ids"], fillvalue=NOTHING))
    first = next((index for index, (token, another) in pairs if token != another), None)
    masks = [one["sampled_mask"] for one in (row, other)]
    if first is None or any(not any(mask[:first]) or any(mask[first : first + 1]) for mask in masks):
        return
    turn = sum(sampled and not before for before, sampled in pairwise([False, *masks[0][:first]]))
    answers = (_answer_to(one.get("completion"), turn) for one in (row, other))
    yield Difference(step, "environment", f"the answer to turn {turn} of sample {row['sample_id']}", *answers)


def _answer_to(completion: str | None, turn: int) -> Any:
    """Return the recorded messages between turn `turn` (the first is 1) and the next."""
    turns, answers = 0, []
    for message in json.loads(completion or "[]"):
        turns += message["role"] == "assistant"
        if turns == turn and message["role"] != "assistant":
            answers.append(message["content"])
    return answers[0] if len(answers) == 1 else answers or NOTHING


def _compare(
    step: int, quantity: str, what: str, first: Mapping, second: Mapping, limit: float = 0.0
) -> Iterator[Difference]:
    """Yield a difference, called `what`, for each name with unequal values. With `limit`, tolerances are allowed."""
    for name in dict.fromkeys([*first, *second]):
        value, other, times = first.get(name, NOTHING), second.get(name, NOTHING), 0.0
        if value == other or (_is_nan(value) and _is_nan(other)):
            continue
        if limit and (times := TOLERANCES.get(name, 0.0)) is None:
            continue
        numbers = isinstance(value, float) and isinstance(other, float)
        if times and numbers and _relative(name, value, other) <= times * limit:
            continue
        beyond = f", beyond {times * limit:g} of its size," if times else ""
        yield Difference(step, quantity, what.format(name) + beyond, value, other)


def _relative(name: str, value: float, other: float) -> float:
    """Compute the relative difference. The divisor is at least 1 for values that may cancel to 0."""
    least = 1.0 if name in ("loss", "entropy", "kl") else 0.0
    return abs(value - other) / max(abs(value), abs(other), least)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _short(value: Any) -> str:
    text = NOTHING if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"
