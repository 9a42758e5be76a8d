"""Observers of a run: display, alarms, monitors, card, audit, plan. A run trains without observers, too.

class Rewards(Observer):
    def after_step(self, step, metrics, timings):
        print(step, metrics.get("reward/mean"))

with RL("examples/reverse_text/tiny.toml", observers=[Rewards()]) as rl: ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hone.errors import UserError
from hone.extension import gathered, load

if TYPE_CHECKING:
    from hone.runs.writer import RunWriter

Action = Literal["checkpoint", "pause", "stop"]


@dataclass(frozen=True)
class Finding:
    """A problem: the measured `value`, the `threshold` that it exceeds, the evidence in words, and advice."""

    value: float
    threshold: float
    evidence: str
    advice: str


class Observer:
    """Watches a run and changes none of its numbers. Override the methods that you need; any exception ends the run."""

    def check_config(self, config: Any, env: Any = None) -> None:
        """Called first. `env` is RL's (first) task, an Environment, or None. Raise UserError to refuse the config."""

    def check(self, training: Any) -> None:
        """Called before anything is written, with the `RL` or `SFT`. Raise UserError to refuse the run."""

    def before_start(self, run: RunWriter) -> None:
        """Called when the run directory is open, before this process's first step, `run.start_step`."""

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> Action | None:
        """Called with the lines of metrics.jsonl and timings.jsonl, after they were written. May return an action:
        "checkpoint" saves the version, "pause" saves it and pauses the run, "stop" ends the run.
        """

    def at_end(self, status: str) -> None:
        """Called once run.json has the final status, in reverse order of the observers."""

    def report(self) -> str:
        """Return lines that a command prints before its last lines, each with a line break."""
        return ""


def checked_observers(observers: Sequence[Observer], config: Any) -> list[Observer]:
    """Return the observers, plus the extensions' observers of every run. Raises UserError if any is no Observer."""
    if not isinstance(observers, Sequence) or not all(isinstance(one, Observer) for one in observers):
        raise UserError("observers must be a list of hone.runs.observer.Observer: subclass it, and define after_step")
    watches = [one for one in gathered("OBSERVERS", {}).values() if one.always]
    more = [load(one.module, one.function)(config, True) for one in watches]
    return [*observers, *(one for one in more if one is not None and type(one) not in map(type, observers))]
