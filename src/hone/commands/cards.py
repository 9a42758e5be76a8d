"""The run card at the end of `rl` and `sft`: written while the run is still open, and never the reason why it fails."""

from __future__ import annotations

import logging
import shlex
from typing import Any

from hone.runs.observer import Observer
from hone.runs.outputs import CARD
from hone.runs.writer import RunWriter

LENIENT_SECONDS = 10.0
"""Most that grading for the card may delay the end of a run; one that was stopped, or is out of budget, waits for none.
"""


class Card(Observer):
    """Writes the run card when the run ends."""

    def check(self, training: Any) -> None:
        self._env = getattr(training, "env", None)  # to grade with

    def before_start(self, run: RunWriter) -> None:
        self._run = run

    def at_end(self, status: str) -> None:
        if status not in ("done", "budget", "stopped"):
            return
        folder, say = self._run.folder, self._run.display.message
        again = f"hone report {shlex.quote(str(folder))} writes it"
        try:
            from hone.viewer.card.facts import facts_of
            from hone.viewer.card.files import write_card

            self._run.display.phase("report")
            card = facts_of(folder, self._reader(status), ours=True)
            if card.run.progress.history:
                write_card(card, folder)
                say(f"Card: {folder / CARD[0]}")
        except KeyboardInterrupt:
            say(f"The card was left out: {again}.")
        except Exception as error:
            if not isinstance(
                error, OSError
            ):  # a disk that takes no card may take no log either, and the message is it
                logging.getLogger(__name__).warning("the run card could not be written", exc_info=True)
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            say(f"The card could not be written ({cause}): {again}.")

    def _reader(self, status: str) -> Any:
        """Return what reads evaluations leniently, as `facts_of` takes it; None without a task."""
        from hone.viewer.card.lenient import Leniency

        env = self._env
        if env is None:
            return None

        def read(run, evaluated):
            from hone.environments.rubric import is_async
            from hone.viewer.card.lenient import read as leniently

            why_not = ""
            if status != "done":
                why_not = "the run was to end at once"
            elif any(map(is_async, env.rubric.funcs.values())):
                why_not = "reward functions that are async may ask a service, for money"
            elif not env.rubric.inline and not env.has_workers:
                why_not = "no process can run this task's reward functions, to be ended if they hang"
            if why_not:
                return Leniency(f"{why_not}: hone report {shlex.quote(str(run.path))} reads it")
            return leniently(env, evaluated, run.info["seed"], LENIENT_SECONDS)

        return read
