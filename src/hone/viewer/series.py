"""The numbers of a run as columns against its steps: read once, then line by line as the run writes them.

`metrics.jsonl` and `timings.jsonl` have lines for the same steps; together they are one row of a table whose columns
are the metrics' names. Null and what a step lacks are NaN here, null in JSON.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from hone.runs.files import Rewound, Tail

POINTS = 2000
"""Rows up to which every one is drawn; of more, the extremes of each metric."""


class Series:
    """The columns of the run in `folder`; empty until `refresh`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._begin()

    def _begin(self) -> None:
        self._tails = [Tail(self.folder / f"{name}.jsonl") for name in ("metrics", "timings")]
        self._rows: dict[int, int] = {}
        self._columns: dict[str, array[float]] = {}

    def refresh(self) -> None:
        """Read what the files got since. UserError for a damaged line."""
        try:
            self._read()
        except Rewound:
            self._begin()
            self._read()

    def _read(self) -> None:
        for tail in self._tails:
            for record in tail.new():
                self._add(record["step"], record)

    def _add(self, step: int, record: Mapping[str, Any]) -> None:
        row = self._rows.setdefault(step, len(self._rows))
        for name, value in record.items():
            if name == "step":
                continue
            column = self._columns.setdefault(name, array("d"))
            if len(column) <= row:
                column.extend([math.nan] * (row + 1 - len(column)))
            column[row] = float(value) if isinstance(value, (int, float)) else math.nan

    @property
    def take(self) -> str:
        """Name what was read: another one after a resume has rolled the run back."""
        return f"{self._tails[0].inode:x}"

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> list[str]:
        """The metrics that have a number somewhere, in order of appearance."""
        return [name for name, column in self._columns.items() if not all(map(math.isnan, column))]

    @property
    def last_step(self) -> int:
        """The last step that has a line; -1 before the first."""
        return max(self._rows, default=-1)

    def steps(self) -> np.ndarray:
        """Return the steps that have a line: int64 [rows], ascending."""
        return np.sort(np.fromiter(self._rows, np.int64, len(self._rows)))

    def column(self, name: str) -> np.ndarray:
        """Return float64 [rows], NaN where there is no value; all NaN for a metric that there isn't."""
        found = np.full(len(self._rows), math.nan)
        values = self._columns.get(name, ())
        found[: len(values)] = values
        return found[np.argsort(np.fromiter(self._rows, np.int64, len(self._rows)), kind="stable")]

    def points(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (steps, values) where the metric has a value."""
        values = self.column(name)
        there = ~np.isnan(values)
        return self.steps()[there], values[there]

    def latest(self, name: str) -> float | None:
        """Return the last value of a metric; None if it has none."""
        _, values = self.points(name)
        return float(values[-1]) if len(values) else None


class SeriesStore:
    """The series of the runs that were looked at last, each kept up to date."""

    def __init__(self, size: int = 24):
        self._size = size
        self._found: OrderedDict[Path, tuple[Series, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def read(self, folder: Path) -> Iterator[Series]:
        """Give the columns of the run in `folder` as they are now; nobody else changes them inside the block."""
        with self._lock:
            series, lock = self._found.setdefault(folder, (Series(folder), threading.Lock()))
            self._found.move_to_end(folder)
            while len(self._found) > self._size:
                self._found.popitem(last=False)
        with lock:
            series.refresh()
            yield series


def axes(series: Series) -> dict[str, np.ndarray]:
    """Return what rows can be drawn against, by name, each [rows]: `step`; `tokens` trained on and `hours` of its
    processes by its end; `tokens_before` and `hours_before`, those by its beginning, which the version of its
    evaluation had seen.

    Where a row lacks them (the evaluation after the last step trains on nothing) those of the row before hold.
    """
    total = series.column("time/total")
    seconds = np.nancumsum(series.column("time/step")) if np.isnan(total).all() else total
    tokens, hours = _held(series.column("tokens/total")), _held(seconds) / 3600
    return {
        "step": series.steps(),
        "tokens": tokens,
        "hours": hours,
        "tokens_before": _by_beginning(tokens),
        "hours_before": _by_beginning(hours),
    }


def _by_beginning(ends: np.ndarray) -> np.ndarray:
    """Return what a row began with, of what there was at the end of each."""
    return np.concatenate([[0.0], ends])[: len(ends)]


def _held(values: np.ndarray) -> np.ndarray:
    """Return `values` with those that are missing taken from the one before, 0 at the beginning."""
    index = np.maximum.accumulate(np.where(np.isnan(values), -1, np.arange(len(values))))
    return np.where(index >= 0, values[index], 0.0) if len(values) else values


def extremes(values: np.ndarray, points: int) -> np.ndarray:
    """Return indices, ascending, of at most `points` values that draw like all of them: of each of `points / 2`
    stretches the lowest and the highest, and the first and the last value that there are. NaN are left out.
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


def to_json(
    series: Series, names: Iterable[str], after: int | None = None, stacks: Iterable[Sequence[str]] = ()
) -> dict[str, Any]:
    """Return what a page draws: the rows with a step above `after`, by default all.

    `x` has the axes of the rows that are used, `series` for each metric its values `y`, one for each row, or, of one
    that few rows have or that was thinned out, one for each of `rows`, indices of rows. Null where a value is missing.
    Metrics of `stacks`, each a list of names that are drawn on top of each other, are thinned out to the same rows.
    """
    steps = series.steps()
    begin = 0 if after is None else int(np.searchsorted(steps, after, side="right"))
    thin = len(steps) - begin > POINTS
    columns = {name: series.column(name)[begin:] for name in names}
    chosen = {name: _chosen(values, thin) for name, values in columns.items()}
    for stack in stacks if thin else ():
        there = [columns[name] for name in stack if name in columns]
        chosen |= dict.fromkeys(stack, extremes(np.nansum(there, axis=0), POINTS))
    used = [rows for rows in chosen.values() if rows is not None]
    all_rows = np.arange(len(steps) - begin)
    rows = np.unique(np.concatenate([all_rows[[0, -1]], *used])) if thin else all_rows
    return {
        "take": series.take,
        "last": series.last_step,
        "x": {name: _plain(values[begin:][rows]) for name, values in axes(series).items()},
        "series": {
            name: {"y": _plain(values)}
            if (at := chosen[name]) is None
            else {"rows": np.searchsorted(rows, at).tolist(), "y": _plain(values[at])}
            for name, values in columns.items()
        },
    }


def _chosen(values: np.ndarray, thin: bool) -> np.ndarray | None:
    """Return the rows of a metric that are drawn; None for all."""
    if thin:
        return extremes(values, POINTS)
    known = np.flatnonzero(~np.isnan(values))
    return known if 2 * len(known) < len(values) else None


def _plain(values: np.ndarray) -> list[Any]:
    """Return numbers as JSON takes them: integers stay so, what is not finite is null."""
    if values.dtype.kind == "i":
        return values.tolist()
    return [value if math.isfinite(value) else None for value in values.tolist()]
