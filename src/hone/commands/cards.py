"""The run card at the end of `rl` and `sft`: written while the run is still open, and never the reason why it fails."""

from __future__ import annotations

import logging
import shlex
from typing import TYPE_CHECKING, Any

from hone.runs.observer import Observer
from hone.runs.outputs import CARD
from hone.runs.writer import RunWriter

if TYPE_CHECKING:
    from hone.environments import Environment
    from hone.viewer.card.facts import Read

LENIENT_SECONDS = 10.0
"""Most that grading for the card may delay the end of a run; one that was stopped, or is out of budget, waits for none.
"""
_ENDS = ("done", "budget", "stopped")
"""Statuses that a card is written at."""


class Card(Observer):
    """Writes the run card when the run ends."""

    def check(self, training: Any) -> None:
        self._env: Environment | None = getattr(training, "env", None)  # to grade with

    def before_start(self, run: RunWriter) -> None:
        self._run = run

    def at_end(self, status: str) -> None:
        _write(self._run, self._env, status)


def _write(writer: RunWriter, env: Environment | None, status: str) -> None:
    """Writes the card, and says where it is, or why there is none."""
    if status not in _ENDS:
        return
    again = f"hone report {shlex.quote(str(writer.folder))} writes it"
    try:
        from hone.viewer.card.facts import facts_of
        from hone.viewer.card.files import write_card

        writer.display.phase("report")
        card = facts_of(writer.folder, _reader(env, status), ours=True)
        if card.run.progress.history:
            write_card(card, writer.folder)
            writer.display.message(f"Card: {writer.folder / CARD[0]}")
    except KeyboardInterrupt:
        writer.display.message(f"The card was left out: {again}.")
    except Exception as error:
        if not isinstance(error, OSError):  # a disk that takes no card may take no log either, and the message says it
            logging.getLogger(__name__).warning("the run card could not be written", exc_info=True)
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        writer.display.message(f"The card could not be written ({cause}): {again}.")


def _reader(env: Environment | None, status: str) -> Read | None:
    if env is None:
        return None

    def read(run, evaluated):
        from hone.environments.rubric import is_async
        from hone.viewer.card.leniency import Leniency
        from hone.viewer.card.lenient import read as leniently

        report = f"hone report {shlex.quote(str(run.path))} reads it"
        if status != "done":
            return Leniency(f"the run was to end at once: {report}")
        if any(map(is_async, env.rubric.funcs.values())):
            return Leniency(f"reward functions that are async may ask a service, for money: {report}")
        if not env.rubric.inline and not env.has_workers:
            return Leniency(f"no process can run this task's reward functions, to be ended if they hang: {report}")
        return leniently(env, evaluated, run.info["seed"], LENIENT_SECONDS)

    return read
