"""The metrics and timings of a run as columns with a row per step. Missing values are NaN here, null in JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hone.runs.view import RunView

POINTS = 2000
"""Most rows to draw completely. If there are more, only the extremes of each metric are drawn."""


class Series:
    """The columns of a run's current files. Raises UserError for a damaged line."""

    def __init__(self, folder: Path):
        lines: dict[int, dict[str, Any]] = {}
        run = RunView(folder)
        for record in [*run.metric_lines(), *run.timing_lines()]:
            lines.setdefault(record["step"], {}).update(record)
        self.steps = np.array(sorted(lines), np.int64)
        """Steps that have a line, in ascending order [rows]."""
        self._columns: dict[str, np.ndarray] = {}
        for row, step in enumerate(self.steps.tolist()):
            for name, value in lines[step].items():
                if isinstance(value, int | float) and name != "step":
                    self._columns.setdefault(name, self.column(name))[row] = value

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def column(self, name: str) -> np.ndarray:
        """Return a metric as float64 [rows]; NaN where a step has no value."""
        found = self._columns.get(name)
        return np.full(len(self.steps), math.nan) if found is None else found

    def points(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        values = self.column(name)
        there = ~np.isnan(values)
        return self.steps[there], values[there]

    def latest(self, name: str) -> float | None:
        _, values = self.points(name)
        return float(values[-1]) if len(values) else None


@lru_cache(maxsize=24)
def _read(folder: Path, changed: Any) -> Series:
    return Series(folder)


def read_series(folder: Path) -> Series:
    """Return a run's columns; files are read again only if they have changed."""
    return _read(folder, RunView(folder).stamp())


def axes(series: Series) -> dict[str, np.ndarray]:
    """Return the x axes by name, each [rows]: `step`, and the `tokens` and `hours` of training before the step."""
    total = series.column("time/total")
    seconds = np.nancumsum(series.column("time/step")) if np.isnan(total).all() else total

    def before(ends: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], np.fmax.accumulate(np.nan_to_num(ends))])[: len(ends)]

    tokens, hours = before(series.column("tokens/total")), before(seconds / 3600)
    return {"step": series.steps, "tokens": tokens, "hours": hours}


def extremes(values: np.ndarray, points: int) -> np.ndarray:
    """Return ascending indices of at most `points` values that draw nearly the same line: each part's extremes, and the
    first and last value. NaN are left out.
    """
    known = np.flatnonzero(~np.isnan(values))
    if len(known) <= points:
        return known
    edges = np.linspace(0, len(known), max(1, points // 2 - 1) + 1).astype(int)
    found = {int(known[0]), int(known[-1])}
    for begin, end in pairwise(edges):
        part = known[begin:end]
        found |= {int(part[np.argmin(values[part])]), int(part[np.argmax(values[part])])}
    return np.array(sorted(found))


def to_json(series: Series, names: Iterable[str], stacks: Iterable[Sequence[str]] = ()) -> dict[str, Any]:
    """Return the data of a page's charts.

    `x` has the axes, for the used rows. `series` has the values `y` of each metric, one per used row. A sparse or
    thinned metric also has `rows`: for each value, the index of its row in `x`. Metrics in a stack are thinned to the
    same rows.
    """
    count = len(series.steps)
    columns = {name: series.column(name) for name in names}
    chosen: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        known = np.flatnonzero(~np.isnan(values))
        if count > POINTS or 2 * len(known) < count:
            chosen[name] = extremes(values, POINTS)
    rows = np.arange(count)
    if count > POINTS:
        for stack in stacks:
            there = [columns[name] for name in stack if name in columns]
            chosen |= dict.fromkeys(stack, extremes(np.nansum(there, axis=0), POINTS))
        rows = np.unique(np.concatenate([rows[[0, -1]], *chosen.values()]))
    drawn = {
        name: {"rows": np.searchsorted(rows, chosen[name]).tolist(), "y": _plain(values[chosen[name]])}
        if name in chosen else {"y": _plain(values)}
        for name, values in columns.items()
    }  # fmt: skip
    return {
        "last": int(series.steps[-1]) if count else -1,
        "x": {name: _plain(values[rows]) for name, values in axes(series).items()},
        "series": drawn,
    }


def _plain(values: np.ndarray) -> list[Any]:
    """Convert numbers for JSON; None if not finite."""
    if values.dtype.kind == "i":
        return values.tolist()
    return [value if math.isfinite(value) else None for value in values.tolist()]
