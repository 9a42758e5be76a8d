"""Stopping on purpose before time, money or tokens run out, with enough left to save and evaluate."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hone.config.shared import BudgetConfig

_RECENT = 10


def process_seconds() -> float:
    """Wall seconds since this process began; where the system doesn't tell, 0."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(0.0, uptime - started / os.sysconf("SC_CLK_TCK"))


class Budget:
    """What a run has spent over all its processes, and whether another step fits into its limits.

    `seconds` and `tokens` are what was spent before, `step_tokens` what a step took then. A step is expected to take as
    long as the longest of the last ten, and what follows it as long as the longest of each such phase so far.
    """

    def __init__(
        self,
        limits: BudgetConfig | None,
        seconds: float = 0.0,
        tokens: int = 0,
        step_tokens: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self.tokens = tokens
        self._clock = clock
        self._began = clock() - process_seconds() - seconds
        self._steps: deque[float] = deque(maxlen=_RECENT)
        self._step_tokens: deque[int] = deque([step_tokens], maxlen=_RECENT)
        self._phases: dict[str, float] = {}
        self._reached = ""

    @property
    def seconds(self) -> float:
        """Wall seconds of all processes of the run so far."""
        return self._clock() - self._began

    def took(self, phase: str, seconds: float) -> None:
        """A phase that the end of the run needs time for: `checkpoint`, `evaluate`, `validate`."""
        if phase in ("checkpoint", "evaluate", "validate"):
            self._phases[phase] = max(seconds, self._phases.get(phase, 0.0))

    def step(self, seconds: float, tokens: int | None) -> None:
        """A step is done: its wall seconds, and the tokens of the run so far."""
        self._steps.append(seconds)
        if tokens is not None:
            self._step_tokens.append(tokens - self.tokens)
            self.tokens = tokens

    @property
    def limit_reached(self) -> str:
        """Which limit another step would cross: hours, usd or tokens; "" if none. Once reached, it stays so."""
        self._reached = self._reached or self._limit_in_reach()
        return self._reached

    def _limit_in_reach(self) -> str:
        if self.limits is None:
            return ""
        need = self.seconds + max(self._steps, default=0.0) + sum(self._phases.values())
        for name, limit in self._second_limits():
            if need > limit:
                return name
        if self.limits.tokens is not None and self.tokens + max(self._step_tokens) > self.limits.tokens:
            return "tokens"
        return ""

    @property
    def used_up(self) -> str:
        """What is spent of the limit that another step would cross, in words; "" if none would be crossed."""
        return self.spent(self.limit_reached) if self.limit_reached else ""

    def spent(self, name: str) -> str:
        """`0.48 of 0.5 hours`, `1.20 of 2.00 US dollars` or `90,112 of 100,000 tokens`."""
        assert self.limits is not None
        if name == "tokens":
            return f"{self.tokens:,} of {self.limits.tokens:,} tokens"
        hours = self.seconds / 3600
        if name == "usd":
            return f"{hours * (self.limits.usd_per_hour or 0.0):.2f} of {self.limits.usd:.2f} US dollars"
        return f"{hours:.3g} of {self.limits.hours:g} hours"

    def _second_limits(self) -> list[tuple[str, float]]:
        assert self.limits is not None
        found = []
        if self.limits.hours is not None:
            found.append(("hours", self.limits.hours * 3600))
        if self.limits.usd is not None and self.limits.usd_per_hour is not None:
            found.append(("usd", self.limits.usd / self.limits.usd_per_hour * 3600))
        return found
