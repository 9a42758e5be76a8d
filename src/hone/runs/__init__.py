"""Run directories: the training loops write them, and they are read back. Imports only `config` of hone's packages."""

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
