"""What was predicted of the runs under a folder, what became of it, and how well the stated probabilities hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.evaluation.intervals import Interval, wilson
from hone.runs import predictions as recorded
from hone.runs.listing import find_runs
from hone.runs.outputs import existing_run
from hone.runs.predictions import Scored, mean_brier, score

BINS = 10
"""Of the stated probability, in the calibration."""


@dataclass(frozen=True)
class Row:
    """A prediction of a run, and what became of it."""

    run: Path
    info: dict[str, Any]
    scored: Scored

    def facts(self) -> dict[str, Any]:
        """Return everything, as what becomes JSON."""
        one = self.scored
        value = one.value if one.value is not None and abs(one.value) < float("inf") else None
        return {"run": str(self.run), "id": self.info["id"], "made": self.info[recorded.KEY]["made"]} | (
            asdict(one.prediction) | {"outcome": one.outcome, "value": value, "brier": one.brier, "why": one.why}
        )


@dataclass(frozen=True)
class Bin:
    """The predictions whose probability lies in [low, high): its mean, and the share that came true, with Wilson's
    95 % interval.
    """

    low: float
    high: float
    mean: float
    true: float
    interval: Interval
    count: int

    @property
    def verdict(self) -> str:
        """`predicted too high`, `predicted too low`, or empty."""
        if self.mean > self.interval.high:
            return "predicted too high"
        return "predicted too low" if self.mean < self.interval.low else ""


def found(root: Path) -> tuple[list[Row], list[str]]:
    """Return the predictions of all runs under `root`, oldest run first, and in words those that can't be counted."""
    rows: dict[tuple[str, int], Row] = {}
    left_out = []
    for path in find_runs(root):
        try:
            info = existing_run(path)
            if info is None or info["kind"] == "eval":
                continue
            if damage := recorded.problem(info, path):
                left_out.append(f"changed, and left out: {path}: {damage}")
                continue
            for number, one in enumerate(score(info, path)):
                rows.setdefault((info["id"], number), Row(path, info, one))  # once, of a run that was copied
        except UserError as error:
            left_out.append(f"left out: {error}")
    return sorted(rows.values(), key=lambda row: row.info[recorded.KEY]["made"]), left_out


def calibration(scored: Sequence[Scored]) -> list[Bin]:
    """Return the decided predictions by stated probability, bins without any left out."""
    bins = []
    for number in range(BINS):
        inside = [one for one in scored if min(int(one.prediction.p * BINS + 1e-9), BINS - 1) == number]
        if inside:
            true = sum(bool(one.outcome) for one in inside)
            mean = sum(one.prediction.p for one in inside) / len(inside)
            interval = wilson(true, len(inside))
            bins.append(Bin(number / BINS, (number + 1) / BINS, mean, true / len(inside), interval, len(inside)))
    return bins


def overall(scored: Sequence[Scored]) -> tuple[float, float]:
    """Return the mean Brier score of decided predictions, and the share that came true."""
    brier = mean_brier(scored)
    assert brier is not None
    return brier, sum(bool(one.outcome) for one in scored) / len(scored)
