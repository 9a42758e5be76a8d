"""The first thing in which two records of the same step differ.

Quantities are compared in the order in which a step makes them, so that the first one that differs is the cause, and
what differs after it the consequence: the weights that the step began with, the order of examples, what the environment
said between the turns of a conversation and the tokens of all turns, as they follow each other, logprobs, rewards, the
rest of each rollout, advantages, the samples of an evaluation, metrics (gradient norm and loss first), the weights that
it made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

Row = dict[str, Any]
"""One completion, with the columns of `hone.runs.rollouts.schema` as plain Python values."""

QUANTITIES = (
    "initial weights",
    "order",
    "environment",
    "tokens",
    "logprobs",
    "rewards",
    "rollouts",
    "advantages",
    "evaluation",
    "metrics",
    "weights",
)
"""In the order in which they are compared."""

# Columns that come in no quantity of their own. `detail` is none of them: a traceback in it names folders.
_OTHER = ("example_id", "versions", "stop_reason", "state", "prompt", "text", "completion", "answer", "info", "weights")
_FIRST_METRICS = ("grad_norm", "loss")


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT = _Absent()
"""Stands for what one of two records lacks."""


@dataclass(frozen=True)
class StepRecord:
    """What is known of one step; None for what isn't. Fingerprints `before` and `after` are of versions N and N + 1;
    `evals` are the samples of the evaluation of version N, as in `evals/step_N.jsonl`.
    """

    step: int
    rows: Sequence[Row] | None = None
    metrics: Mapping[str, Any] | None = None
    before: str | None = None
    after: str | None = None
    evals: Sequence[Row] | None = None


@dataclass(frozen=True)
class Difference:
    """Where two records part: `what` in words, and its two values."""

    step: int
    quantity: str
    what: str
    first: Any
    second: Any

    def sentence(self, first: str = "A", second: str = "B") -> str:
        """`step 3, tokens: token 17 of sample 3-9-2 is 41 in A and 57 in B`."""
        return (
            f"step {self.step}, {self.quantity}: {self.what} is {_shown(self.first)} in {first} and "
            f"{_shown(self.second)} in {second}"
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON-ready values."""
        values = {"first": _shown(self.first), "second": _shown(self.second)}
        return {"step": self.step, "quantity": self.quantity, "what": self.what} | values


def first_difference(first: StepRecord, second: StepRecord) -> Difference | None:
    """The first quantity in which two records of a step differ; None if they agree in all that both know."""
    assert first.step == second.step
    step = first.step
    if first.before and second.before and first.before != second.before:
        what = f"the fingerprint of version {step}, which the step begins with,"
        return Difference(step, "initial weights", what, first.before, second.before)
    rows, metrics, found = (first.rows, second.rows), (first.metrics, second.metrics), None
    if rows[0] is not None and rows[1] is not None:
        found = _rows_differ(step, rows[0], rows[1])
    if found is None and first.evals is not None and second.evals is not None:
        found = _evaluations_differ(step, first.evals, second.evals)
    if found is None and metrics[0] is not None and metrics[1] is not None:
        found = _metrics_differ(step, metrics[0], metrics[1])
    if found is not None:
        return found
    if first.after and second.after and first.after != second.after:
        what = f"the fingerprint of version {step + 1}, which the step makes,"
        return Difference(step, "weights", what, first.after, second.after)
    return None


def same(first: Any, second: Any) -> bool:
    """Equality in which NaN equals NaN."""
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    return first == second


def _rows_differ(step: int, first: Sequence[Row], second: Sequence[Row]) -> Difference | None:
    examples, others = ({row["draw"]: row["example_id"] for row in reversed(rows)} for rows in (first, second))
    for draw in sorted(examples.keys() | others.keys()):
        pair = examples.get(draw, ABSENT), others.get(draw, ABSENT)
        if pair[0] != pair[1]:
            return Difference(step, "order", f"the example of draw {draw}", *pair)
    ids = ([row["sample_id"] for row in rows] for rows in (first, second))
    if found := _in_sequence(step, "tokens", "the sample in row {}", *ids):
        return found
    pairs = list(zip(first, second, strict=True))
    for compare in (_tokens, _logprobs, _rewards, _others, _advantages):
        for row, other in pairs:
            if found := compare(step, row, other):
                return found
    return None


def _tokens(step: int, row: Row, other: Row) -> Difference | None:
    found = _in_sequence(step, "tokens", "token {} of sample " + row["sample_id"], row["token_ids"], other["token_ids"])
    if found or row["sampled_mask"] == other["sampled_mask"]:
        return found and (_environment(step, row, other) or found)
    what = f"whether token {{}} of sample {row['sample_id']} was sampled"
    return _in_sequence(step, "tokens", what, row["sampled_mask"], other["sampled_mask"])


def _environment(step: int, row: Row, other: Row) -> Difference | None:
    """If the first token that differs is one that the environment said (or did not say) after a turn: what it said."""
    pairs = enumerate(zip_longest(row["token_ids"], other["token_ids"], fillvalue=ABSENT))
    first = next(index for index, (token, another) in pairs if token != another)
    masks = [of_row["sampled_mask"] for of_row in (row, other)]
    if any(not any(mask[:first]) or any(mask[first : first + 1]) for mask in masks):
        return None
    turn = sum(sampled and not before for before, sampled in pairwise([False, *masks[0][:first]]))
    said = (_answer(of_row.get("completion"), turn) for of_row in (row, other))
    return Difference(step, "environment", f"what it said after turn {turn} of sample {row['sample_id']}", *said)


def _answer(completion: str | None, turn: int) -> Any:
    """What stands between this turn (the first is 1) and the next in recorded messages."""
    turns = 0
    said = []
    for message in json.loads(completion or "[]"):
        turns += message["role"] == "assistant"
        if turns == turn and message["role"] != "assistant":
            said.append(message["content"])
    return said[0] if len(said) == 1 else said or ABSENT


def _logprobs(step: int, row: Row, other: Row) -> Difference | None:
    what = f"that of token {{}} of sample {row['sample_id']}"
    return _in_sequence(step, "logprobs", what, row["logprobs"], other["logprobs"])


def _in_sequence(step: int, quantity: str, what: str, first: Sequence[Any], second: Sequence[Any]) -> Difference | None:
    if first == second:
        return None
    for index, (value, other) in enumerate(zip_longest(first, second, fillvalue=ABSENT)):
        if not same(value, other):
            return Difference(step, quantity, what.format(index), value, other)
    return None


def _rewards(step: int, row: Row, other: Row) -> Difference | None:
    values, others = dict(row["components"] or ()), dict(other["components"] or ())
    pairs = {f"component {name}": (values.get(name, ABSENT), others.get(name, ABSENT)) for name in values | others}
    pairs |= {"the outcome": (row["outcome"], other["outcome"]), "the reward": (row["reward"], other["reward"])}
    for name, (value, another) in pairs.items():
        if not same(value, another):
            return Difference(step, "rewards", f"{name} of sample {row['sample_id']}", value, another)
    return None


def _others(step: int, row: Row, other: Row) -> Difference | None:
    for name in _OTHER:
        if row[name] != other[name]:
            what = f"the column {name} of sample {row['sample_id']}"
            return Difference(step, "rollouts", what, row[name], other[name])
    return None


def _advantages(step: int, row: Row, other: Row) -> Difference | None:
    if same(row["advantage"], other["advantage"]):
        return None
    what = f"that of sample {row['sample_id']}"
    return Difference(step, "advantages", what, row["advantage"], other["advantage"])


def _evaluations_differ(step: int, first: Sequence[Row], second: Sequence[Row]) -> Difference | None:
    for row, other in zip_longest(first, second, fillvalue={}):
        for name in dict.fromkeys([*row, *other]):
            value, another = row.get(name, ABSENT), other.get(name, ABSENT)
            if name != "detail" and not same(value, another):
                of = row or other
                what = f"{name} of completion {of.get('rollout')} of example {of.get('example')}"
                return Difference(step, "evaluation", what, value, another)
    return None


def _metrics_differ(step: int, first: Mapping[str, Any], second: Mapping[str, Any]) -> Difference | None:
    for name in dict.fromkeys([*_FIRST_METRICS, *first, *second]):
        value, other = first.get(name, ABSENT), second.get(name, ABSENT)
        if not same(value, other):
            return Difference(step, "metrics", name, value, other)
    return None


def _shown(value: Any) -> str:
    """A value, short enough for a sentence."""
    if value is None or value is ABSENT:
        return "nothing"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"
