"""The metrics of a run's steps, averaged over windows: what alarms compare."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any

NOTHING = math.nan


@dataclass(frozen=True)
class Window:
    """Mean of some steps in a row, and its standard error by how much steps differ. NaN where nothing is known."""

    mean: float = NOTHING
    error: float = NOTHING

    def __bool__(self) -> bool:
        return not math.isnan(self.mean)


UNKNOWN = Window()
SIGMAS = 5.0
"""Standard errors by which two windows must differ: the extremes of thousands of windows are compared, in many runs."""
RECENT = 10
"""Windows from whose steps the scatter is taken: that of ten steps alone is too small once in a while."""


def differ(one: Window, other: Window, sigmas: float = SIGMAS) -> bool:
    """Whether two windows are further apart than their steps scatter."""
    return abs(one.mean - other.mean) > sigmas * math.hypot(one.error, other.error)


@dataclass
class Series:
    """A metric, step by step, with the mean of each window that ends at a step. A missing value is NaN."""

    window: int
    values: list[float] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    lowest: int = -1
    """Index of the window with the least mean; -1 if there is none yet."""
    highest: int = -1
    _last: float = NOTHING
    _squares: deque[float] = field(init=False)
    """Squared differences of neighbours, of the last `RECENT` windows."""

    def __post_init__(self) -> None:
        self._squares = deque(maxlen=RECENT * self.window)

    def append(self, value: float) -> None:
        self.values.append(value)
        if not math.isnan(value):
            if not math.isnan(self._last):
                self._squares.append((value - self._last) ** 2)
            self._last = value
        known = [value for value in self.values[-self.window :] if not math.isnan(value)]
        if len(self.values) < self.window or 2 * len(known) < self.window:
            self.windows.append(UNKNOWN)
            return
        self.windows.append(Window(fmean(known), self._standard_error(known)))
        here = len(self.windows) - 1
        if self.lowest < 0 or self.windows[here].mean < self.windows[self.lowest].mean:
            self.lowest = here
        if self.highest < 0 or self.windows[here].mean > self.windows[self.highest].mean:
            self.highest = here

    def _standard_error(self, values: list[float]) -> float:
        """Of their mean, from how much neighbours differ, here or in general: a trend, or a jump, is no scatter."""
        here = [(after - before) ** 2 for before, after in pairwise(values)]
        return math.sqrt(max(fmean(here), fmean(self._squares)) / 2 / len(values)) if here else 0.0


class History:
    """Metrics of the steps of a run so far; those that a step does not have are unknown in it.

    Windows are of `window` steps; `weights` are those of the reward's components, by name, and `correctness` is the one
    that decides whether a completion is correct.
    """

    def __init__(self, window: int, weights: Mapping[str, float] | None = None, correctness: str | None = None) -> None:
        self.window = window
        self.weights = dict(weights or {})
        self.correctness = correctness
        self.steps: list[int] = []
        self._series: dict[str, Series] = {}

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Takes in the metrics of a step; null, as what was not finite is written, is unknown."""
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
        for name in numbers.keys() - self._series.keys():
            self._series[name] = Series(self.window, [NOTHING] * len(self.steps), [UNKNOWN] * len(self.steps))
        self.steps.append(step)
        for name, series in self._series.items():
            series.append(numbers.get(name, NOTHING))

    def __len__(self) -> int:
        return len(self.steps)

    def values(self, name: str) -> list[float]:
        """The metric in each step."""
        series = self._series.get(name)
        return series.values if series else [NOTHING] * len(self.steps)

    def latest(self, name: str) -> float:
        """The metric in the last step."""
        return self.values(name)[-1] if self.steps else NOTHING

    def now(self, name: str) -> Window:
        """The last window."""
        return self.at(name, len(self.steps) - 1)

    def at(self, name: str, index: int) -> Window:
        """The window that ends at the step of this index; unknown where there is none."""
        series = self._series.get(name)
        return series.windows[index] if series and 0 <= index < len(series.windows) else UNKNOWN

    def first(self, name: str) -> Window:
        """The first window that is known."""
        series = self._series.get(name)
        return next((window for window in series.windows if window), UNKNOWN) if series else UNKNOWN

    def lowest(self, name: str) -> int:
        """Index of the step that ends the window with the least mean; -1 if there is none."""
        series = self._series.get(name)
        return series.lowest if series else -1

    def highest(self, name: str) -> int:
        """Index of the step that ends the window with the largest mean; -1 if there is none."""
        series = self._series.get(name)
        return series.highest if series else -1
