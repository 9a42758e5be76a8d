"""Comparing a run that was trained on several ranks with its replay in one process: equal but for how sums round.

What does not come from the train step is compared exactly. Of what does, each quantity has a size that its rounding
goes by: of the loss, whose terms cancel, the mean |advantage| of its tokens; of the rest the quantity itself, or 1 nat
where that is less. The share of the tokens that are clipped is left out: a token at the edge decides it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hone.reproduce.compare import Difference, StepRecord, first_difference
from hone.reproduce.integrity import Tensors

JUDGED = ("loss", "val/loss", "grad_norm", "entropy", "kl", "logprob_gap/mean", "logprob_gap/max")
"""Metrics of the train step that a few bits change by as little."""
LEFT_OUT = ("clipped",)
_IN_NATS = ("entropy", "kl", "logprob_gap/mean", "logprob_gap/max")


@dataclass(frozen=True)
class Distance:
    """How far two values of the same thing are apart, `relative` to its size."""

    step: int
    what: str
    first: float
    second: float
    relative: float

    def __str__(self) -> str:
        return f"{self.what} of step {self.step} by {self.relative:.1e}"


class Tolerance:
    """Takes records that differ by no more than `limit`, relative, for equal. `largest` is the largest distance."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.largest: Distance | None = None

    def difference(self, recorded: StepRecord, again: StepRecord) -> Difference | None:
        """The first quantity in which two records of a step are not equal, or too far apart."""
        found = first_difference(_exact(recorded), _exact(again))
        if found is not None or recorded.metrics is None or again.metrics is None:
            return found
        for name in JUDGED:
            values = [record.metrics.get(name) for record in (recorded, again) if record.metrics is not None]
            if values == [None, None]:
                continue
            one, other = (math.nan if value is None else float(value) for value in values)
            size = max(abs(one), abs(other), _least_size(name, recorded))
            if self._beyond(Distance(recorded.step, name, one, other, abs(one - other) / size if size else 0.0)):
                return Difference(recorded.step, "metrics", f"{name}, beyond {self.limit:g} of its size,", one, other)
        return None

    def weights_differ(self, version: int, what: str, saved: Tensors, replayed: Tensors) -> bool:
        """Whether saved parameters are further than `limit` from the replayed ones: |saved - replayed| / |replayed|."""
        if saved.keys() != replayed.keys():
            return True
        apart = sum(float((saved[n].double() - t.detach().cpu().double()).square().sum()) for n, t in replayed.items())
        size = sum(float(t.detach().cpu().double().square().sum()) for t in replayed.values())
        distance = math.sqrt(apart / size) if size else 0.0
        return self._beyond(Distance(version - 1, what, distance, 0.0, distance))

    def _beyond(self, found: Distance) -> bool:
        if self.largest is None or not found.relative <= self.largest.relative:
            self.largest = found
        return not found.relative <= self.limit  # what is not a number is beyond


def _exact(record: StepRecord) -> StepRecord:
    """What of a record several ranks leave as it is: not the weights, and not what training says of them."""
    metrics = record.metrics
    if metrics is not None:
        metrics = {name: value for name, value in metrics.items() if name not in (*JUDGED, *LEFT_OUT)}
    return replace(record, metrics=metrics, before=None, after=None)


def _least_size(name: str, record: StepRecord) -> float:
    if name in _IN_NATS:
        return 1.0
    return _mean_advantage(record.rows) if name == "loss" else 0.0


def _mean_advantage(rows: Any) -> float:
    """Mean |advantage| of the tokens that a step was trained on."""
    tokens = total = 0.0
    for row in rows or ():
        if row["state"] == "trained":
            count = sum(row["sampled_mask"])
            tokens += count
            total += count * abs(_number(row))
    return total / tokens if tokens else 0.0


def _number(row: Mapping[str, Any]) -> float:
    return float(row["advantage"] or 0.0)
