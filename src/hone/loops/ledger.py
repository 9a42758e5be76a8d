"""The outcome of every draw. A draw is one example taken in one step, numbered over the whole run.

Each draw ends in exactly one state. The ledger is part of the checkpoint, so a resume forgets the draws after the
checkpoint and repeats them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["trained", "filtered", "failed", "retired", "surplus", "cut"]


@dataclass(frozen=True)
class Entry:
    """The outcome of one draw: `trained`, `filtered` (nothing to learn from: equal rewards, or all completions masked),
    `failed` (grader), `retired` (not sampled); with `refill` also `surplus` (the batch was full) and, in older runs,
    `cut` (cut off for its length).

    `tokens` counts prompt and completion tokens of all its rollouts. `graded` counts rollouts with a grade, `solved`
    the correct ones; None unless pass rates are measured. `env` names the task, if there are several.
    """

    draw: int
    step: int
    example_id: str
    state: State
    tokens: int
    solved: int | None = None
    graded: int | None = None
    env: str | None = None

    def record(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


class Ledger:
    """The entries of a run, one per draw, in the order of the draws; `tokens` is their total."""

    def __init__(self, entries: list[dict] | None = None) -> None:
        self.entries = [Entry(**entry) for entry in entries or []]
        self.tokens = sum(entry.tokens for entry in self.entries)

    def close(self, entry: Entry) -> None:
        expected = len(self.entries)
        assert entry.draw == expected, f"draw {entry.draw} closed out of order; expected {expected}"
        self.entries.append(entry)
        self.tokens += entry.tokens

    def of(self, env: str) -> list[Entry]:
        return [entry for entry in self.entries if (entry.env or "") == env]

    def state(self, before: int | None = None) -> Callable[[], dict[str, list[dict]]]:
        """Return a function that returns the current entries (of steps before `before`); any thread may call it."""
        entries = [entry for entry in self.entries if before is None or entry.step < before]
        return lambda: {"ledger": [entry.record() for entry in entries]}
