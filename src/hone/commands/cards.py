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
        folder, display = self._run.folder, self._run.display
        again = f"hone report {shlex.quote(str(folder))}"
        try:
            from hone.viewer.card.facts import facts_of
            from hone.viewer.card.files import write_card

            display.phase("report")
            env = self._env
            read = None if env is None else lambda run, rows: self._read(env, run, rows, status, again)
            card = facts_of(folder, read, ours=True)
            if card.run.progress.history:
                write_card(card, folder)
                display.message(f"Card: {folder / CARD[0]}")
        except KeyboardInterrupt:
            display.message(f"The card was left out: {again} writes it.")
        except Exception as error:
            if not isinstance(error, OSError):  # a disk that takes no card may take no log either
                logging.getLogger(__name__).warning("the run card could not be written", exc_info=True)
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            display.message(f"The card could not be written ({cause}): {again} writes it.")

    def _read(self, env: Any, run: Any, evaluated: Any, status: str, again: str) -> Any:
        """Read evaluations leniently, as `facts_of` wants it; return why not if that could take long or cost money."""
        from hone.environments.rubric import is_async
        from hone.viewer.card.lenient import Leniency, read

        if status != "done":
            return Leniency(f"the run was to end at once: {again} reads it")
        if any(map(is_async, env.rubric.funcs.values())) or not (env.rubric.inline or env.has_workers):
            return Leniency(f"reward functions might ask a service, or hang: {again} reads it")
        return read(env, evaluated, run.info["seed"], LENIENT_SECONDS)
