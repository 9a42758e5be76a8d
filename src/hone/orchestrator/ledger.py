"""What became of every draw. A draw is one example taken in one step; its index counts over the whole run.

Each draw ends in exactly one state; the ledger is part of the checkpoint, so a resume forgets the draws after it, and
they are drawn again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["trained", "filtered", "failed", "retired"]


@dataclass(frozen=True)
class Entry:
    """The end of one draw: `trained`, `filtered` (no reward variance), `failed` (grader), `retired` (by a curriculum).

    `tokens` counts what its rollouts cost: prompt and completion tokens of all of them.
    """

    draw: int
    step: int
    example_id: str
    state: State
    tokens: int


class Ledger:
    """The entries of a run, one per draw, in the order of the draws; `tokens` is what all of them cost."""

    def __init__(self, entries: list[dict] | None = None) -> None:
        self.entries = [Entry(**entry) for entry in entries or []]
        self.tokens = sum(entry.tokens for entry in self.entries)

    def close(self, entry: Entry) -> None:
        """Records how a draw ended. Draws close in order, each once."""
        assert entry.draw == self.next_draw, f"draw {entry.draw} closed out of order; expected {self.next_draw}"
        self.entries.append(entry)
        self.tokens += entry.tokens

    @property
    def next_draw(self) -> int:
        """Index of the next draw to take."""
        return len(self.entries)

    def state(self) -> Callable[[], dict[str, list[dict]]]:
        """The entries so far as a JSON-ready record, made when asked for: a thread may do that while draws go on."""
        entries = list(self.entries)
        return lambda: {"ledger": [vars(entry).copy() for entry in entries]}
