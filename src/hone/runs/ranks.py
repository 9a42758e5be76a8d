"""On how many processes a run was trained, from which step on: `ranks` in run.json, absent where it was always one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hone.runs.writer import RunWriter


def note_ranks(run: RunWriter, ranks: int) -> None:
    """Enters the ranks from the step on that `run` begins or goes on with.

    A change makes the run inexact: sums over another number of processes round otherwise.
    """
    step = run.start_step
    entries = [entry for entry in run.info.get("ranks", []) if entry["step"] < step]
    before = entries[-1]["ranks"] if entries else 1
    if ranks == 1 and not run.info.get("ranks"):
        return  # a run in one process says nothing of ranks
    if not entries or ranks != before:
        entries.append({"step": step, "ranks": ranks})
    run.note(ranks=entries)
    if step and ranks != before:
        run.mark_inexact(step, f"resumed on {_ranks(ranks)} (before: {_ranks(before)})")


def most_ranks(info: Mapping[str, Any]) -> int:
    """The most processes that any step of the run was trained on."""
    return max((entry["ranks"] for entry in info.get("ranks", [])), default=1)


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''}"
