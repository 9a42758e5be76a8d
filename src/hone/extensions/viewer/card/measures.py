"""Measures of evaluations, and their changes between two evaluations on the same examples.

Rows are as in results.jsonl (`hone.evaluation.result.EvalSample.row`), one per completion. Both evaluations have the
same examples, so the examples' difficulty cancels. Only examples are independent, so an example's completions are
averaged first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hone.errors import UserError
from hone.evaluation.intervals import clustered_share, mean_interval, pass_at_k
from hone.types import Outcome

FAILED = frozenset({Outcome.GRADER_ERROR, Outcome.GRADER_TIMEOUT, "rollout_failed"})
"""Outcomes of rows without a reward."""
LEAST = 6
"""Fewest changed examples for a verdict: if five change, all for the better, a sign test has p = 2 / 2**5 > 0.05."""
Row = Mapping[str, Any]
Values = Mapping[int, float]
"""Values of one measure by example."""
_NEEDED = {
    **{"example": int, "rollout": int, "example_id": str, "prompt": list, "completion": list, "answer": str},
    **{"reward": int | float | None, "components": dict, "outcome": str, "detail": str, "stop_reason": str | None},
}


@dataclass(frozen=True)
class Evaluated:
    """The rows of one evaluation; `step` is the evaluated version, None for a run of `hone eval`."""

    step: int | None
    rows: Sequence[Row]

    @property
    def key(self) -> str:
        return "results" if self.step is None else str(self.step)

    @cached_property
    def by_example(self) -> dict[int, list[Row]]:
        """Graded rows by example, in the order of rollouts."""
        found: dict[int, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: (row["example"], row["rollout"])):
            if row["outcome"] not in FAILED:
                found.setdefault(row["example"], []).append(row)
        return found

    @property
    def counts(self) -> dict[int, int]:
        return {example: len(rows) for example, rows in self.by_example.items()}

    @cached_property
    def rollouts(self) -> int:
        """Most graded completions of any example."""
        return max(self.counts.values(), default=0)

    @property
    def measures(self) -> dict[str, Values]:
        """The values of each measure by example: mean reward, share of correct completions, and pass@k (unbiased
        estimate) for k = 2, 4, … if the example has k graded completions."""
        counts = {e: (len(rows), sum(map(is_correct, rows))) for e, rows in self.by_example.items()}
        rewards = {e: sum(row["reward"] for row in rows) / len(rows) for e, rows in self.by_example.items()}
        measured: dict[str, Values] = {"reward": rewards}
        for k in (2**i for i in range(self.rollouts.bit_length())):
            name = "correct" if k == 1 else f"pass@{k}"
            measured[name] = {e: pass_at_k(n, right, k) for e, (n, right) in counts.items() if n >= k}
        return measured


MEASURES = ("strict reward", "lenient reward", "reward gap", "strict", "lenient", "gap")


class Answer(NamedTuple):
    """An answer found in a completion, the kind of place where it was, and its grade in the task's form."""

    example: int
    rollout: int
    kind: str
    reward: float
    correct: bool


@dataclass(frozen=True)
class Leniency:
    """The result of lenient reading: `examples` were read, out of `asked` examples.

    `found` has the answers in each evaluation, by `Evaluated.key`. `why_not` is the reason if nothing was measured.
    """

    why_not: str = ""
    examples: Sequence[int] = ()
    found: Mapping[str, Sequence[Answer]] = field(default_factory=dict)
    asked: int = 0

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Leniency:
        """Parse a record. Raises TypeError if it is malformed."""
        found = {key: [Answer(*row) for row in rows] for key, rows in record.get("found", {}).items()}
        return cls(record.get("why_not", ""), record.get("examples", ()), found, record.get("asked", 0))

    def measures(self, one: Evaluated) -> dict[str, Values]:
        """Return each measure of `MEASURES` by example. A "gap" is the lenient value minus the strict value."""
        means: dict[int, list[float]] = {}
        found: dict[tuple[int, int], list[Answer]] = {}
        for answer in self.found[one.key]:
            found.setdefault((answer.example, answer.rollout), []).append(answer)
        for example in self.examples:
            values = []
            for row in one.by_example[example]:
                answers, strict, paid = found.get((example, row["rollout"]), []), is_correct(row), row["reward"]
                lenient = strict or any(answer.correct for answer in answers)
                more = max([paid, *(answer.reward for answer in answers)])
                values.append((paid, more, more - paid, strict, lenient, lenient - strict))
            means[example] = np.mean(values, axis=0).tolist()
        return {name: {example: mean[i] for example, mean in means.items()} for i, name in enumerate(MEASURES)}


@dataclass(frozen=True)
class Level:
    """A mean over examples, and its 95 % interval from `low` to `high` (None: unknown)."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Change:
    """The means of a measure before and after, and the difference. `moved` of `examples` common examples changed."""

    before: Level
    after: Level
    difference: Level
    examples: int
    moved: int

    @property
    def sure(self) -> bool:
        """True if at least `LEAST` examples changed, and the interval of the difference excludes 0.

        There is no interval if all examples changed by the same amount; then the first condition decides.
        """
        low, high = self.difference.low, self.difference.high
        return self.moved >= LEAST and (low is None or high is None or not low <= 0.0 <= high)


@dataclass(frozen=True)
class Comparison:
    """Changes from an evaluation to a later one, by measure: `reward`, `correct`, `pass@2`, ….

    `right` and `wrong` count examples with a first completion that became correct, or incorrect. `apart` counts
    examples left out because they differ between the evaluations or are not graded in both.
    """

    measures: Mapping[str, Change]
    right: int
    wrong: int
    apart: int


def compare(first: Evaluated, last: Evaluated) -> Comparison | None:
    """Compare two evaluations example by example; None without a common example."""
    ids = [{row["example"]: row["example_id"] for row in one.rows} for one in (first, last)]
    same = {example for example in ids[0].keys() & ids[1].keys() if ids[0][example] == ids[1][example]}
    before, after = (Evaluated(one.step, [row for row in one.rows if row["example"] in same]) for one in (first, last))
    both = before.by_example.keys() & after.by_example.keys()
    if not both:
        return None
    hits = [(is_correct(before.by_example[e][0]), is_correct(after.by_example[e][0])) for e in both]
    apart = len(ids[0].keys() | ids[1].keys()) - len(both)
    found = changes(before.measures, after.measures, before.counts, after.counts)
    return Comparison(found, hits.count((False, True)), hits.count((True, False)), apart)


def changes(
    before: Mapping[str, Values],
    after: Mapping[str, Values],
    counts_before: Mapping[int, int],
    counts_after: Mapping[int, int],
) -> dict[str, Change]:
    """Return the change of each measure over the common examples. `counts_…`: number of completions by example."""
    found: dict[str, Change] = {}
    for name in before:
        if both := sorted(before[name].keys() & after.get(name, {}).keys()):
            was_E, is_E = (np.array([values[name][e] for e in both], dtype=np.float64) for values in (before, after))
            was, now = (
                _level(name, values_E, np.array([counts[e] for e in both], dtype=np.float64))
                for values_E, counts in ((was_E, counts_before), (is_E, counts_after))
            )
            moved = int(np.count_nonzero(np.abs(is_E - was_E) > 1e-12))
            difference = _mean_level(is_E - was_E)
            if "reward" not in name and difference.low is not None and difference.high is not None:
                difference = Level(difference.mean, max(difference.low, -1.0), min(difference.high, 1.0))
            found[name] = Change(was, now, difference, len(both), moved)
    return found


def _level(name: str, values_E: np.ndarray, counts_E: np.ndarray) -> Level:
    """Return the mean and interval of a measure. For pass@k, n completions count as n / k draws."""
    if "reward" in name:
        return _mean_level(values_E)
    k = int(name.removeprefix("pass@")) if name.startswith("pass@") else 1
    # Every example weighs the same in the mean, however many completions it has.
    sizes_E = np.full(len(values_E), max(1.0, float(counts_E.mean()) / k))
    interval = clustered_share(values_E * sizes_E, sizes_E)
    return Level(float(values_E.mean()), interval.low, interval.high)


def _mean_level(values_E: np.ndarray) -> Level:
    """Return mean and Student's t interval over examples; no interval for a single value or equal values."""
    interval, mean = mean_interval(list(values_E[:, None])), float(values_E.mean())
    if interval is None or interval.high - interval.low < 1e-9:
        return Level(mean)
    return Level(mean, interval.low, interval.high)


def is_correct(row: Row) -> bool:
    return row["outcome"] == Outcome.CORRECT


def usable(rows: Sequence[Row]) -> list[Row]:
    """Return the rows. Raises UserError if a row lacks a field that a card needs."""
    for number, row in enumerate(rows, 1):
        wrong = [name for name, kind in _NEEDED.items() if not isinstance(row.get(name, ...), kind)]
        if not wrong and row["outcome"] not in FAILED:
            values = {"reward": row["reward"]} | row["components"]
            wrong = [n for n, v in values.items() if not (isinstance(v, int | float) and math.isfinite(v))]
        if wrong:
            raise UserError(f"line {number} of an evaluation's samples is damaged ({wrong[0]} is missing, or wrong)")
    return list(rows)


def mcnemar(right: int, wrong: int) -> float:
    """Return the two-sided p of McNemar's exact test (1947): binomial, `right` of `right + wrong`, p = 1/2.

    The sum is over whole numbers, which keeps small p values exact.
    """
    count = right + wrong
    return min(1.0, 2 * sum(math.comb(count, i) for i in range(min(right, wrong) + 1)) / 2**count)
