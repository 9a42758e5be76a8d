"""The evaluations that a run recorded: what they measured, by example, and what changed between the first and the last.

Rows are those of results.jsonl (`hone.evaluation.result.EvalSample.row`), one for each completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hone.evaluation.passk import pass_at_k
from hone.types import Outcome
from hone.viewer.card.paired import Change, Level, Turned, Values, changes, levels, turned

FAILED = frozenset({Outcome.GRADER_ERROR, Outcome.GRADER_TIMEOUT, "rollout_failed"})
"""Outcomes of rows without a reward."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Evaluated:
    """The rows of one evaluation; `step` is the version that it was of, None for a run of `hone eval`."""

    step: int | None
    rows: Sequence[Row]

    @cached_property
    def by_example(self) -> dict[int, list[Row]]:
        """The graded rows of each example that has any, by rollout."""
        found: dict[int, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: (row["example"], row["rollout"])):
            if row["outcome"] not in FAILED:
                found.setdefault(row["example"], []).append(row)
        return found

    @property
    def ungraded(self) -> int:
        """Completions without a reward."""
        return len(self.rows) - sum(map(len, self.by_example.values()))

    @cached_property
    def rollouts(self) -> int:
        """Most completions of an example."""
        return max(map(len, self.by_example.values()), default=0)

    @cached_property
    def rewards(self) -> dict[int, float]:
        """The mean reward of each example."""
        return {example: _mean([row["reward"] for row in rows]) for example, rows in self.by_example.items()}

    @cached_property
    def correct(self) -> dict[int, float]:
        """The share of correct completions of each example."""
        return {example: _mean(map(is_correct, rows)) for example, rows in self.by_example.items()}

    @cached_property
    def first_correct(self) -> dict[int, bool]:
        """Whether the first completion of each example is correct."""
        return {example: is_correct(rows[0]) for example, rows in self.by_example.items()}

    @property
    def passes(self) -> dict[int, dict[int, float]]:
        """For k = 2, 4, … the unbiased estimate of pass@k of each example that has k graded completions."""
        found: dict[int, dict[int, float]] = {}
        k = 2
        while k <= self.rollouts:
            counts = {e: (len(rows), sum(map(is_correct, rows))) for e, rows in self.by_example.items()}
            found[k] = {e: pass_at_k(n, right, k) for e, (n, right) in counts.items() if n >= k}
            k *= 2
        return found

    @property
    def truncated(self) -> float:
        """The share of completions that the length limit stopped."""
        return _mean([row["stop_reason"] == "length" for row in self.rows])

    @property
    def tokens(self) -> int | None:
        """Tokens of all prompts and completions; None if they were not all counted."""
        counts = [row.get(name) for row in self.rows for name in ("prompt_tokens", "completion_tokens")]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def identities(self) -> dict[int, str]:
        """The content's id of each example."""
        return {row["example"]: row["example_id"] for row in self.rows}


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

    @property
    def count(self) -> int:
        return self.measures["reward"].count if "reward" in self.measures else 0


SHARES = ("exact", "pass@2", "pass@4", "pass@8", "pass@16", "pass@32", "pass@64", "pass@128")
"""Measures that are shares."""


def compare(first: Evaluated, last: Evaluated, seed: int) -> Comparison:
    """What changed from one evaluation to the other, example by example."""
    same = _same(first, last)
    pairs: dict[str, tuple[Values, Values]] = {
        "reward": (first.rewards, last.rewards),
        "exact": (first.correct, last.correct),
    }
    before, after = first.passes, last.passes
    pairs |= {f"pass@{k}": (before[k], after[k]) for k in before if k in after}
    kept = {name: (_only(one, same), _only(other, same)) for name, (one, other) in pairs.items()}
    measures = changes(kept, seed, SHARES)
    apart = len(first.identities.keys() | last.identities.keys()) - (
        measures["reward"].count if "reward" in measures else 0
    )
    outcomes = turned(_only(first.first_correct, same), _only(last.first_correct, same))
    return Comparison(first, last, measures, outcomes, apart)


def measured(one: Evaluated, seed: int) -> dict[str, Level]:
    """What a single evaluation says."""
    values: dict[str, Values] = {"reward": one.rewards, "exact": one.correct}
    values |= {f"pass@{k}": passes for k, passes in one.passes.items()}
    return levels(values, seed, SHARES)


def is_correct(row: Row) -> bool:
    """Whether the task called this completion correct."""
    return row["outcome"] == Outcome.CORRECT


def _same(first: Evaluated, last: Evaluated) -> set[int]:
    """The examples that both evaluations asked, of the same content."""
    one, other = first.identities, last.identities
    return {example for example in one.keys() & other.keys() if one[example] == other[example]}


def _only(values: Mapping[int, Any], kept: set[int]) -> dict[int, Any]:
    return {example: value for example, value in values.items() if example in kept}


def _mean(values: Any) -> float:
    numbers = [float(value) for value in values]
    return sum(numbers) / len(numbers) if numbers else 0.0
