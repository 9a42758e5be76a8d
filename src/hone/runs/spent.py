"""What a run has cost so far: read from its logs, those of steps that were rolled back included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from hone.runs.files import read_lines

RECENT = 10
"""The last this many steps tell what the next one will take."""
ENDING = ("checkpoint", "publish", "evaluate", "validate")
"""Phases that the end of a run needs time for."""


@dataclass(frozen=True)
class Spent:
    """Wall seconds and US dollars of all processes of a run (dollars None if no price was given), tokens up to here,
    and what recent steps and the phases of an ending took, which predicts the next.
    """

    seconds: float = 0.0
    usd: float | None = None
    tokens: int = 0
    recent_seconds: tuple[float, ...] = ()
    recent_tokens: tuple[int, ...] = ()
    phases: Mapping[str, float] = field(default_factory=dict)

    def usd_at(self, price: float) -> float:
        """US dollars, at `price` per hour if none was given then."""
        return self.seconds / 3600 * price if self.usd is None else self.usd


def spent(folder: Path, info: Mapping[str, Any]) -> Spent:
    """What the run in `folder`, with this run.json, has spent. Tokens are those of the steps that it still has."""
    lines = read_lines(folder / "timings.jsonl")
    superseded = [line for log in folder.glob("superseded/*/timings.jsonl") for line in read_lines(log)]
    metrics = read_lines(folder / "metrics.jsonl")
    totals = [0, *(line["tokens/total"] for line in metrics if line.get("tokens/total") is not None)]
    steps = {line["step"] for line in metrics if line.get("tokens/total") is not None}
    return Spent(
        seconds=_largest("time/total", [*lines, *superseded], info.get("seconds")) or _of_steps(lines),
        usd=_largest("usd/total", [*lines, *superseded], info.get("usd")),
        tokens=totals[-1],
        recent_seconds=tuple(line.get("time/step") or 0.0 for line in lines if line["step"] in steps)[-RECENT:],
        recent_tokens=tuple(after - before for before, after in pairwise(totals))[-RECENT:],
        phases={name: _largest(f"time/{name}", lines) or 0.0 for name in ENDING},
    )


def _of_steps(lines: list[dict[str, Any]]) -> float:
    """Seconds of a run that did not yet record its total."""
    return sum(line.get("time/step") or 0.0 for line in lines)


def _largest(name: str, lines: list[dict[str, Any]], other: float | None = None) -> float | None:
    values = [value for line in lines if (value := line.get(name)) is not None]
    return max(values + ([] if other is None else [other]), default=None)
