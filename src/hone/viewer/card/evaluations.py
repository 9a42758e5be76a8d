"""The evaluations that a run recorded: what they measured, by example, and what changed between the first and the last.

Rows are those of results.jsonl (`hone.evaluation.result.EvalSample.row`), one for each completion.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hone.errors import UserError
from hone.evaluation.passk import pass_at_k
from hone.types import Outcome
from hone.viewer.card.paired import Change, Level, Turned, Values, changes, levels, turned

FAILED = frozenset({Outcome.GRADER_ERROR, Outcome.GRADER_TIMEOUT, "rollout_failed"})
"""Outcomes of rows without a reward."""
SHARES = ("exact", *(f"pass@{2**i}" for i in range(1, 8)))
"""Measures that are shares."""
Row = Mapping[str, Any]
_NEEDED = {
    **{"example": int, "rollout": int, "example_id": str, "prompt": list, "completion": list, "answer": str},
    **{"reward": int | float | None, "components": dict, "outcome": str, "detail": str, "stop_reason": str | None},
}


@dataclass(frozen=True)
class Evaluated:
    """The rows of one evaluation; `step` is the version that it was of, None for a run of `hone eval`."""

    step: int | None
    rows: Sequence[Row]

    @property
    def key(self) -> str:
        """Its name in a record."""
        return "results" if self.step is None else str(self.step)

    @cached_property
    def by_example(self) -> dict[int, list[Row]]:
        """The graded rows of each example that has any, by rollout."""
        found: dict[int, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: (row["example"], row["rollout"])):
            if row["outcome"] not in FAILED:
                found.setdefault(row["example"], []).append(row)
        return found

    @cached_property
    def rollouts(self) -> int:
        """Most completions of an example."""
        return max(map(len, self.by_example.values()), default=0)

    @property
    def measures(self) -> dict[str, Values]:
        """By example: the mean reward, the share of correct completions (`exact`), the unbiased estimate of pass@k for
        k = 2, 4, … of each example that has k graded completions.
        """
        measured: dict[str, Values] = {
            "reward": {e: sum(row["reward"] for row in rows) / len(rows) for e, rows in self.by_example.items()},
            "exact": {e: sum(map(is_correct, rows)) / len(rows) for e, rows in self.by_example.items()},
        }
        k = 2
        while k <= self.rollouts:
            counts = {e: (len(rows), sum(map(is_correct, rows))) for e, rows in self.by_example.items()}
            measured[f"pass@{k}"] = {e: pass_at_k(n, right, k) for e, (n, right) in counts.items() if n >= k}
            k *= 2
        return measured

    @property
    def truncated(self) -> float:
        """The share of completions that the length limit stopped."""
        return sum(row["stop_reason"] == "length" for row in self.rows) / max(1, len(self.rows))

    @property
    def tokens(self) -> int | None:
        """Tokens of all prompts and completions; None if they were not all counted."""
        counts = [row.get(name) for row in self.rows for name in ("prompt_tokens", "completion_tokens")]
        return None if None in counts else sum(count or 0 for count in counts)


@dataclass(frozen=True)
class Comparison:
    """The first evaluation of a run against the last. `apart` counts examples that are not the same in both, or could
    not be graded in one: they are left out.
    """

    first: Evaluated
    last: Evaluated
    measures: Mapping[str, Change]
    turned: Turned
    apart: int


def compare(first: Evaluated, last: Evaluated, seed: int) -> Comparison | None:
    """Return what changed from one evaluation to the other, example by example; None without a common example."""
    ids = [{row["example"]: row["example_id"] for row in one.rows} for one in (first, last)]
    same = {example for example in ids[0].keys() & ids[1].keys() if ids[0][example] == ids[1][example]}

    def common(values: Mapping[int, Any]) -> dict[int, Any]:
        return {example: value for example, value in values.items() if example in same}

    before, after = first.measures, last.measures
    measures = changes({n: (common(before[n]), common(after[n])) for n in before if n in after}, seed, SHARES)
    if "reward" not in measures:
        return None
    right = [common({e: is_correct(rows[0]) for e, rows in one.by_example.items()}) for one in (first, last)]
    apart = len(ids[0].keys() | ids[1].keys()) - measures["reward"].count
    return Comparison(first, last, measures, turned(*right), apart)


def measured(one: Evaluated, seed: int) -> dict[str, Level]:
    """Return what a single evaluation says."""
    return levels(one.measures, seed, SHARES)


def is_correct(row: Row) -> bool:
    """Return True if the task called this completion correct."""
    return row["outcome"] == Outcome.CORRECT


def usable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows; UserError if one lacks what a card needs."""
    for number, row in enumerate(rows, 1):
        wrong = [name for name, kind in _NEEDED.items() if not isinstance(row.get(name, ...), kind)]
        messages = [] if wrong else [*row["prompt"], *row["completion"]]
        if not all(isinstance(message, dict) and "role" in message for message in messages):
            wrong = ["a message"]
        if not wrong and row["outcome"] not in FAILED:
            values = [row["reward"], *row["components"].values()]
            wrong = [] if all(isinstance(v, int | float) and math.isfinite(v) for v in values) else ["a reward"]
        if wrong:
            raise UserError(f"line {number} of an evaluation's samples is damaged ({wrong[0]} is missing, or wrong)")
    return list(rows)
