"""The first thing in which two records of the same step differ.

Quantities are compared in the order in which a step makes them, so that the first one that differs is the cause, and
what differs after it the consequence: the weights that the step began with, the order of examples, the environment's
messages between turns and the tokens of all turns, as they follow each other, logprobs, rewards, the rest of each
rollout, advantages, the samples of an evaluation, metrics (gradient norm and loss first), the weights that it made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from hone.runs.metrics import METRICS

if TYPE_CHECKING:
    import torch

Row = dict[str, Any]
"""One completion, with the columns of `hone.runs.rollouts.schema` as plain Python values."""

QUANTITIES = (
    *("initial weights", "order", "environment", "tokens", "logprobs", "rewards", "rollouts", "advantages"),
    *("evaluation", "metrics", "weights"),
)
"""In the order in which they are compared."""

NOTHING = "nothing"
"""Stands for what one of two records lacks."""


@dataclass(frozen=True)
class StepRecord:
    """All known facts of one step, None if unknown. Fingerprints `before` and `after` are of versions N and N + 1;
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
    """A difference of two records: `what` in words, and its two values."""

    step: int
    quantity: str
    what: str
    first: Any
    second: Any

    def sentence(self, first: str = "A", second: str = "B") -> str:
        """Format `step 3, tokens: token 17 of sample 3-9-2 is 41 in A and 57 in B`."""
        values = f"{_short(self.first)} in {first} and {_short(self.second)} in {second}"
        return f"step {self.step}, {self.quantity}: {self.what} is {values}"

    def as_dict(self) -> dict[str, Any]:
        """Return the difference as JSON-ready values."""
        values = {"first": _short(self.first), "second": _short(self.second)}
        return {"step": self.step, "quantity": self.quantity, "what": self.what} | values


def first_difference(first: StepRecord, second: StepRecord) -> Difference | None:
    """Return the first quantity in which two records of a step differ; None if they agree in all that both know."""
    step = first.step
    assert step == second.step
    if first.before and second.before and first.before != second.before:
        what = f"the fingerprint of version {step}, which the step begins with,"
        return Difference(step, "initial weights", what, first.before, second.before)
    difference = None
    if first.rows is not None and second.rows is not None:
        difference = _compare_rows(step, first.rows, second.rows)
    if difference is None and first.evals is not None and second.evals is not None:
        difference = _compare_evaluations(step, first.evals, second.evals)
    if difference is None and first.metrics is not None and second.metrics is not None:
        most_telling = {"grad_norm": NOTHING, "loss": NOTHING}
        difference = _compare(
            step, "metrics", "{}", most_telling | {**first.metrics}, most_telling | {**second.metrics}
        )
    if difference is None and first.after and second.after and first.after != second.after:
        what = f"the fingerprint of version {step + 1}, which the step makes,"
        return Difference(step, "weights", what, first.after, second.after)
    return difference


def _compare_rows(step: int, first: Sequence[Row], second: Sequence[Row]) -> Difference | None:
    examples, others = (
        {row["draw"]: row["example_id"] for row in sorted(reversed(rows), key=lambda row: row["draw"])}
        for rows in (first, second)
    )
    if found := _compare(step, "order", "the example of draw {}", examples, others):
        return found
    ids, others = ({index: row["sample_id"] for index, row in enumerate(rows)} for rows in (first, second))
    if found := _compare(step, "tokens", "the sample in row {}", ids, others):
        return found
    unequal = [(row, other) for row, other in zip(first, second, strict=True) if row != other]
    for quantity, values_of in OF_ROWS:
        for row, other in unequal:
            what = f"{{}} of sample {row['sample_id']}"
            if found := _compare(step, quantity, what, values_of(row), values_of(other)):
                return _environment_difference(step, row, other) or found if quantity == "tokens" else found
    return None


def _environment_difference(step: int, row: Row, other: Row) -> Difference | None:
    """Return the environment's messages that differ, if the first token that differs was not sampled."""
    pairs = enumerate(zip_longest(row["token_ids"], other["token_ids"], fillvalue=NOTHING))
    first = next((index for index, (token, another) in pairs if token != another), None)
    masks = [one["sampled_mask"] for one in (row, other)]
    if first is None or any(not any(mask[:first]) or any(mask[first : first + 1]) for mask in masks):
        return None
    turn = sum(sampled and not before for before, sampled in pairwise([False, *masks[0][:first]]))
    answers = (_answer_to(one.get("completion"), turn) for one in (row, other))
    return Difference(step, "environment", f"what it said after turn {turn} of sample {row['sample_id']}", *answers)


def _answer_to(completion: str | None, turn: int) -> Any:
    """Return what stands between this turn (the first is 1) and the next in recorded messages."""
    turns, answers = 0, []
    for message in json.loads(completion or "[]"):
        turns += message["role"] == "assistant"
        if turns == turn and message["role"] != "assistant":
            answers.append(message["content"])
    return answers[0] if len(answers) == 1 else answers or NOTHING


def _rewards(row: Row) -> Row:
    components = {f"component {name}": value for name, value in sorted(dict(row["components"] or ()).items())}
    return components | {"the outcome": row["outcome"], "the reward": row["reward"]}


def _each(what: str, values: Sequence[Any]) -> Row:
    return {f"{what} {index}": value for index, value in enumerate(values)}


# `detail` is left out: a traceback in it names folders.
_COLUMNS = (
    "example_id",
    "versions",
    "stop_reason",
    "state",
    "prompt",
    "text",
    "completion",
    "answer",
    "info",
    "weights",
)
OF_ROWS: tuple[tuple[str, Callable[[Row], Row]], ...] = (
    ("tokens", lambda row: _each("token", row["token_ids"]) | _each("sampled_mask of token", row["sampled_mask"])),
    ("logprobs", lambda row: _each("that of token", row["logprobs"])),
    ("rewards", _rewards),
    ("rollouts", lambda row: {f"the column {name}": row[name] for name in _COLUMNS if name in row}),
    ("advantages", lambda row: {"that": row["advantage"]}),
)
"""How completions are compared: each quantity with its named values."""


def _compare_evaluations(step: int, first: Sequence[Row], second: Sequence[Row]) -> Difference | None:
    for row, other in zip_longest(first, second, fillvalue={}):
        sample = row or other
        what = f"{{}} of completion {sample.get('rollout')} of example {sample.get('example')}"
        values = ({name: value for name, value in one.items() if name != "detail"} for one in (row, other))
        if found := _compare(step, "evaluation", what, *values):
            return found
    return None


def _compare(step: int, quantity: str, what: str, first: Mapping, second: Mapping) -> Difference | None:
    """Return the first of the names whose value differs; `what` is formatted with it."""
    for name in dict.fromkeys([*first, *second]):
        value, other = first.get(name, NOTHING), second.get(name, NOTHING)
        if value != other and not (_is_nan(value) and _is_nan(other)):
            return Difference(step, quantity, what.format(name), value, other)
    return None


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _short(value: Any) -> str:
    """Format a value, short enough for a sentence."""
    text = NOTHING if value is None else value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


JUDGED = {metric.name: metric.tolerance for metric in METRICS if metric.tolerance}
"""Metrics of the train step that a few bits change by as little, and how many times the limit they may be apart."""
LEFT_OUT = tuple(metric.name for metric in METRICS if metric.tolerance is None)
WEIGHTS = 100
"""AdamW moves each parameter by about the learning rate, whichever sign rounding gives a gradient that is nearly 0."""


class Tolerance:
    """Treats records as equal that differ by at most `limit`, relative: for a run that was trained on several ranks and
    its replay in one process, whose sums round otherwise.

    Values from outside the train step are compared exactly. Others are compared relative to a size: the value itself,
    but for the loss, whose terms cancel, at least its tokens' mean |advantage|; for entropy and KL at least 1 nat. The
    share of clipped tokens, which tokens at the edge decide, and the gap to the sampler, which is nothing but rounding,
    are left out. `largest` is the largest distance, in words.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.largest: str | None = None
        self._furthest = -1.0

    def difference(self, recorded: StepRecord, again: StepRecord) -> Difference | None:
        """Return the first quantity in which two records of a step are not equal, or too far apart."""
        found = first_difference(_exact_part(recorded), _exact_part(again))
        if found is not None or recorded.metrics is None or again.metrics is None:
            return found
        for name, times in JUDGED.items():
            one, other = recorded.metrics.get(name), again.metrics.get(name)
            if one is None and other is None:
                continue
            one, other = (math.nan if value is None else float(value) for value in (one, other))
            least = _mean_advantage(recorded.rows) if name == "loss" else float(name in ("entropy", "kl"))
            size = max(abs(one), abs(other), least)
            relative = abs(one - other) / size if size else 0.0
            if not relative <= self._furthest:  # also what is not a number
                self._furthest, self.largest = relative, f"{name} of step {recorded.step} by {relative:.1e}"
            if not relative <= times * self.limit:
                what = f"{name}, beyond {times * self.limit:g} of its size,"
                return Difference(recorded.step, "metrics", what, one, other)
        return None

    def weights_differ(
        self, start: Mapping[str, torch.Tensor], saved: Mapping[str, torch.Tensor], replayed: Mapping[str, torch.Tensor]
    ) -> bool:
        """Return True if saved parameters are further from the replayed ones than `WEIGHTS` x `limit` of the way that
        those went from `start`; lengths are L2 norms over all parameters.
        """
        if saved.keys() != replayed.keys():
            return True
        return not _distance(saved, replayed) <= WEIGHTS * self.limit * _distance(start, replayed)


def _distance(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> float:
    pairs = ((first[name].detach().cpu().double(), tensor.detach().cpu().double()) for name, tensor in second.items())
    return math.sqrt(sum(float((one - other).square().sum()) for one, other in pairs))


def _exact_part(record: StepRecord) -> StepRecord:
    """Leave out the weights and the metrics of training, which several ranks round otherwise."""
    metrics = record.metrics
    if metrics is not None:
        metrics = {name: value for name, value in metrics.items() if name not in (*JUDGED, *LEFT_OUT)}
    return replace(record, metrics=metrics, before=None, after=None)


def _mean_advantage(rows: Sequence[Row] | None) -> float:
    """Compute the mean |advantage| of the tokens that a step was trained on."""
    trained = [row for row in rows or () if row["state"] == "trained"]
    counts = [sum(row["sampled_mask"]) for row in trained]
    total = sum(count * abs(float(row["advantage"] or 0.0)) for count, row in zip(counts, trained, strict=True))
    return total / sum(counts) if sum(counts) else 0.0
