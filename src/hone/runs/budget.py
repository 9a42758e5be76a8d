"""The cost of a run. Ends the run before time, money or tokens run out, with enough left to save."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from hone.config.shared import BudgetConfig
from hone.runs.view import RunView

CLOSING, OF_START = 2.0, 0.4
"""Seconds from a process's last line to the end of the process and its workers: the larger of CLOSING, and OF_START
times the seconds of its start. Both times grow with the machine's load (the quickstart's RL: 0.9 s after a start of 5
s, 2.2 s after 7 s)."""
RECENT = 10
"""Number of last steps that predict the next step."""
ENDING = ("checkpoint", "publish", "evaluate", "validate")
"""Phases that take time at the end of a run."""


@dataclass(frozen=True)
class Spent:
    """Wall seconds, US dollars (None without a price) and tokens of all processes. Recent steps predict the next."""

    seconds: float = 0.0
    usd: float | None = None
    tokens: int = 0
    recent_seconds: tuple[float, ...] = ()
    recent_tokens: tuple[int, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)

    def usd_at(self, price: float) -> float:
        """Return US dollars, at `price` per hour if no price was recorded."""
        return self.seconds / 3600 * price if self.usd is None else self.usd


def process_seconds() -> float:
    """Return the wall seconds since this process began; 0 if the system doesn't tell."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, uptime - started / os.sysconf("SC_CLK_TCK"))


class Budget:
    """Tracks the cost of a run over all its processes, and checks if another step fits into its limits.

    `before` is the cost of the run's earlier processes. The next step is expected to cost as much as the largest of the
    last ten steps, and each phase after this step to take as long as the longest such phase so far.
    """

    def __init__(
        self, limits: BudgetConfig | None, before: Spent | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        before = before or Spent()
        self.limits = limits
        self.tokens = before.tokens
        self._clock = clock
        self._began = clock() - process_seconds()
        self._before = before
        self._steps = deque(before.recent_seconds, maxlen=RECENT)
        self._step_tokens = deque(before.recent_tokens, maxlen=RECENT)
        self._phases = dict(before.phases)
        self._expected: dict[str, float] = {}
        self._closing: float | None = None
        self._reached = ""

    @property
    def seconds(self) -> float:
        """Wall seconds of all processes of the run so far."""
        return self._before.seconds + self._clock() - self._began

    @property
    def usd(self) -> float | None:
        """US dollars of all processes so far, each process at its own price; None without a price."""
        price = self.limits.usd_per_hour if self.limits else None
        if price is None:
            return self._before.usd
        return self._before.usd_at(price) + (self._clock() - self._began) / 3600 * price

    def took(self, phase: str, seconds: float) -> None:
        if phase in ENDING:
            self._phases[phase] = max(seconds, self._phases.get(phase, 0.0))

    def expect(self, phase: str, seconds: float) -> None:
        self._expected[phase] = seconds

    def step(self, seconds: float, tokens: int | None) -> None:
        """Note a step: its wall seconds, and the tokens of the run so far."""
        if self._closing is None:
            self._closing = max(CLOSING, OF_START * (self._clock() - self._began - seconds))
        self._steps.append(seconds)
        if tokens is not None:
            self._step_tokens.append(tokens - self.tokens)
            self.tokens = tokens

    @property
    def used_up(self) -> str:
        """Return how much of a limit is used (`in_words`), once another step would exceed the limit; until then, ""."""
        limits = self.limits
        if limits is None:
            return ""
        ending = sum((self._expected | {name: s for name, s in self._phases.items() if s}).values())
        hours = (max(self._steps, default=0.0) + ending + (self._closing or CLOSING)) / 3600
        if limits.hours is not None and self.seconds / 3600 + hours > limits.hours:
            self._reached = self._reached or "hours"
        if limits.usd is not None and (self.usd or 0.0) + hours * (limits.usd_per_hour or 0.0) > limits.usd:
            self._reached = self._reached or "usd"
        if limits.tokens is not None and self.tokens + max(self._step_tokens, default=0) > limits.tokens:
            self._reached = self._reached or "tokens"
        return in_words(self._reached, self.spent, limits) if self._reached else ""

    @property
    def spent(self) -> Spent:
        return Spent(self.seconds, self.usd, self.tokens)


def in_words(limit: str, spent: Spent, limits: BudgetConfig) -> str:
    """Return a text such as `0.48 of 0.5 hours`, `1.20 of 2.00 US dollars` or `90,112 of 100,000 tokens`."""
    if limit == "tokens":
        return f"{spent.tokens:,} of {limits.tokens:,} tokens"
    if limit == "usd":
        return f"{_money(spent.usd or 0.0)} of {_money(limits.usd or 0.0)} US dollars"
    return f"{spent.seconds / 3600:.3g} of {limits.hours:g} hours"


def _money(usd: float) -> str:
    return f"{usd:.2f}" if usd >= 1 else f"{usd:.2g}"


def spent(folder: Path, info: Mapping[str, Any]) -> Spent:
    """Return the cost of the run in `folder`. Tokens of steps that were rolled back don't count."""
    run = RunView(folder)
    lines, superseded, metrics = run.timing_lines(), run.superseded_timings(), run.metric_lines()
    totals = [0, *(line["tokens/total"] for line in metrics if line.get("tokens/total") is not None)]
    steps = {line["step"] for line in metrics if line.get("tokens/total") is not None}
    steps_took = sum(line.get("time/step") or 0.0 for line in lines)  # of a run that did not yet record its total
    return Spent(
        seconds=_largest("time/total", [*lines, *superseded], info.get("seconds")) or steps_took,
        usd=_largest("usd/total", [*lines, *superseded], info.get("usd")),
        tokens=totals[-1],
        recent_seconds=tuple(line.get("time/step") or 0.0 for line in lines if line["step"] in steps)[-RECENT:],
        recent_tokens=tuple(after - before for before, after in pairwise(totals))[-RECENT:],
        phases={name: _largest(f"time/{name}", lines) or 0.0 for name in ENDING},
    )


def _largest(name: str, lines: list[dict[str, Any]], other: float | None = None) -> float | None:
    values = [value for line in lines if (value := line.get(name)) is not None]
    return max(values + ([] if other is None else [other]), default=None)
