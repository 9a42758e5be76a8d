"""Comparing a run that was trained on several ranks with its replay in one process: equal but for how sums round.

What does not come from the train step is compared exactly. Of what does, each quantity has a size that its rounding
goes by: of the loss, whose terms cancel, the mean |advantage| of its tokens; of the rest the quantity itself, or 1 nat
where that is less. Left out are the share of the tokens that are clipped, which tokens at the edge decide, and the gap
to the sampler, which is nothing but rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hone.reproduce.compare import Difference, StepRecord, first_difference
from hone.reproduce.integrity import Tensors

JUDGED = {"loss": 1, "val/loss": 1, "grad_norm": 10, "entropy": 10, "kl": 10}
"""Metrics of the train step that a few bits change by as little, and how many times the limit they may be apart."""
LEFT_OUT = ("clipped", "logprob_gap/mean", "logprob_gap/max")
WEIGHTS = 100
"""AdamW moves each parameter by about the learning rate, whichever sign rounding gives a gradient that is nearly 0."""
_IN_NATS = ("entropy", "kl")


@dataclass(frozen=True)
class Distance:
    """How far two values of the same thing are apart, `relative` to its size."""

    step: int
    what: str
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
        for name, times in JUDGED.items():
            values = [record.metrics.get(name) for record in (recorded, again) if record.metrics is not None]
            if values == [None, None]:
                continue
            one, other = (math.nan if value is None else float(value) for value in values)
            size = max(abs(one), abs(other), _least_size(name, recorded))
            relative = abs(one - other) / size if size else 0.0
            if self.largest is None or not relative <= self.largest.relative:
                self.largest = Distance(recorded.step, name, relative)
            if not relative <= times * self.limit:  # what is not a number is beyond
                what = f"{name}, beyond {times * self.limit:g} of its size,"
                return Difference(recorded.step, "metrics", what, one, other)
        return None

    def weights_differ(self, start: Tensors, saved: Tensors, replayed: Tensors) -> bool:
        """Whether saved parameters are further from the replayed ones than `WEIGHTS` x `limit` of the way that those
        went from `start`; lengths are L2 norms over all parameters.
        """
        if saved.keys() != replayed.keys():
            return True
        limit = WEIGHTS * self.limit
        return not _apart(saved, replayed) <= limit * _apart(start, replayed)


def _apart(first: Tensors, second: Tensors) -> float:
    pairs = ((first[name].detach().cpu().double(), tensor.detach().cpu().double()) for name, tensor in second.items())
    return math.sqrt(sum(float((one - other).square().sum()) for one, other in pairs))


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
