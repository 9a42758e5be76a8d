"""What a run shows while it works: plain lines."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol


class Display(Protocol):
    def start(self, step: int) -> None: ...
    def phase(self, name: str) -> None: ...
    def step(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None: ...
    def message(self, text: str) -> None: ...
    def notice(self, text: str) -> None: ...
    def close(self) -> None: ...


class NoDisplay:
    def start(self, step: int) -> None: ...
    def phase(self, name: str) -> None: ...
    def step(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None: ...
    def message(self, text: str) -> None: ...
    def notice(self, text: str) -> None: ...
    def close(self) -> None: ...


class PlainDisplay(NoDisplay):
    def __init__(self, max_steps: int, out: Any):
        self.max_steps, self.out, self.last = max_steps, out, -1e9

    def step(self, step: int, metrics: dict[str, Any], timings: dict[str, Any]) -> None:
        if time.monotonic() - self.last > 2 or step in (0, self.max_steps - 1):
            self.last = time.monotonic()
            shown = ("reward/mean", "loss")
            print(
                f"step {step}/{self.max_steps}",
                *(f"{n} {metrics[n]:.4f}" for n in shown if n in metrics),
                file=self.out,
                flush=True,
            )

    def message(self, text: str) -> None:
        print(text, file=self.out, flush=True)


def make_display(mode: str, kind: str, max_steps: int, out: Any = None) -> Display:
    return NoDisplay() if mode == "none" else PlainDisplay(max_steps, out or sys.stdout)
