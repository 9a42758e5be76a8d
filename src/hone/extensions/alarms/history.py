"""The metrics of a run's steps, averaged over windows, for alarms to compare."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from types import MappingProxyType
from typing import Any

NOTHING = math.nan
SIGMAS = 5.0
"""Two windows differ if their means are this many standard errors apart; large, as many windows are compared."""
RECENT = 10
"""Number of windows that the scatter is estimated from, as ten steps sometimes scatter too little."""


@dataclass(frozen=True)
class Window:
    """Mean of consecutive steps, and its standard error, from the differences of steps. NaN if unknown."""

    mean: float = NOTHING
    error: float = NOTHING

    def __bool__(self) -> bool:
        return not math.isnan(self.mean)


UNKNOWN = Window()


def differ(one: Window, other: Window, sigmas: float = SIGMAS) -> bool:
    return abs(one.mean - other.mean) > sigmas * math.hypot(one.error, other.error)


@dataclass
class Series:
    """A metric at each step, with the window that ends at the step. A missing value is NaN."""

    window: int
    values: list[float] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    lowest: int = -1
    """Index of the window with the lowest mean, or -1 if there is none; `highest` likewise."""
    highest: int = -1

    def __post_init__(self) -> None:
        self._last = NOTHING
        self._squares: deque[float] = deque(maxlen=RECENT * self.window)  # squared differences of neighbours

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
        here, mean = len(self.windows) - 1, self.windows[-1].mean
        if self.lowest < 0 or mean < self.windows[self.lowest].mean:
            self.lowest = here
        if self.highest < 0 or mean > self.windows[self.highest].mean:
            self.highest = here

    def _standard_error(self, values: list[float]) -> float:
        """Estimate the error from differences of consecutive steps, because trends and jumps are no scatter."""
        here = [(after - before) ** 2 for before, after in pairwise(values)]
        return math.sqrt(max(fmean(here), fmean(self._squares)) / 2 / len(values)) if here else 0.0


class History:
    """Metrics of a run's steps so far; NaN at a step without the metric. A window has `window` steps.

    `info` is run.json. It has the weights of the reward's components, and names the component that decides correctness.
    """

    def __init__(self, window: int, info: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.window, self.info = window, info
        self.steps: list[int] = []
        self.not_finite: set[str] = set()
        """Metrics that were not finite in the last step."""
        self._series: dict[str, Series] = {}
        self._unknown = Series(window)

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
        for name in numbers.keys() - self._series.keys():
            self._series[name] = Series(self.window, [NOTHING] * len(self.steps), [UNKNOWN] * len(self.steps))
        self.steps.append(step)
        self.not_finite = {name for name, value in metrics.items() if value is None}
        self._unknown.append(NOTHING)
        for name, series in self._series.items():
            series.append(numbers.get(name, NOTHING))

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def weights(self) -> dict[str, float]:
        return self.info.get("reward_weights") or {}

    def series(self, name: str) -> Series:
        """Return the metric with this name. An unknown metric is NaN at each step."""
        return self._series.get(name, self._unknown)

    def values(self, name: str) -> list[float]:
        return self.series(name).values

    def latest(self, name: str) -> float:
        return self.values(name)[-1] if self.steps else NOTHING

    def now(self, name: str) -> Window:
        return self.at(name, len(self) - 1)

    def at(self, name: str, index: int) -> Window:
        """Return the window that ends at the step with this index, or UNKNOWN if there is none."""
        return self.series(name).windows[index] if 0 <= index < len(self) else UNKNOWN

    def first(self, name: str) -> Window:
        return next(filter(None, self.series(name).windows), UNKNOWN)
