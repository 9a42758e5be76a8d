"""What became of every draw. A draw is one example taken in one step; its index counts over the whole run.

Each draw ends in exactly one state; the ledger is part of the checkpoint, so a resume forgets the draws after it, and
they are drawn again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
    """The entries of a run, one per draw, in the order of the draws."""

    def __init__(self, entries: list[dict] | None = None) -> None:
        self.entries = [Entry(**entry) for entry in entries or []]

    def close(self, entry: Entry) -> None:
        """Records how a draw ended. Draws close in order, each once."""
        assert entry.draw == self.next_draw, f"draw {entry.draw} closed out of order; expected {self.next_draw}"
        self.entries.append(entry)

    @property
    def next_draw(self) -> int:
        """Index of the next draw to take."""
        return len(self.entries)

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens of all draws."""
        return sum(entry.tokens for entry in self.entries)

    def dump(self) -> list[dict]:
        """The entries as JSON-ready records."""
        return [asdict(entry) for entry in self.entries]
