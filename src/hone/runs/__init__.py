"""Run directories: written by the training loops, and read back. Imports no other package of hone but `config`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hone.runs.reader import Run

__all__ = ["Run"]


def __getattr__(name: str) -> Any:
    if name != "Run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hone.runs.reader import Run

    return Run
