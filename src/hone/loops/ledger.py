"""The outcome of every draw. A draw takes one example in one step; draws are numbered over the whole run.

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
    """The outcome of one draw. Its `state` is one of:

    - `trained`;
    - `filtered`: there was nothing to learn, because the rewards were equal or all completions were masked;
    - `failed`: too few completions could be graded;
    - `retired`: the example was not sampled;
    - `surplus`, only with `refill`: the batch was full;
    - `cut`, only in older runs: it was cut off for its length.

    `tokens` counts the prompt and completion tokens of all rollouts. `graded` counts the rollouts with a grade and
    `solved` the correct ones; both are None unless pass rates are measured. `env` names the task if there are several.
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
    """The entries of a run, one per draw, in the order of the draws. `tokens` is the sum over the entries."""

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
        """Return a function that any thread may call; it returns the present entries, of steps before `before`."""
        entries = [entry for entry in self.entries if before is None or entry.step < before]
        return lambda: {"ledger": [entry.record() for entry in entries]}
