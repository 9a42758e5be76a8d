"""The card of a run, written when it ends."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from hone.commands.status import command
from hone.environments.rubric import is_async
from hone.runs import view
from hone.runs.observer import Observer
from hone.runs.writer import RunWriter

LENIENT_SECONDS = 10.0
"""Most seconds of lenient reading at the end of a run."""


def observer(config: Any, by_program: bool) -> Observer | None:
    """Return the observer that writes the card, or None if `report` is off."""
    return Card() if config.report else None


class Card(Observer):
    """Writes the run card when the run ends; a failure here does not fail the run."""

    def check(self, training: Any) -> None:
        self._envs = list(getattr(training, "eval_envs", {}).values())

    def before_start(self, run: RunWriter) -> None:
        self._run = run

    def at_end(self, status: str) -> None:
        if status not in ("done", "budget", "stopped"):
            return
        folder, display = self._run.folder, self._run.display
        self._again = command("hone", "report", str(folder))
        try:
            from hone.extensions.viewer.card.facts import facts_of
            from hone.extensions.viewer.card.files import write_card

            display.phase("report")
            card = facts_of(folder, partial(self._read, status == "done"), ours=True)
            if card.run.progress.history:
                write_card(card, folder)
                display.message(f"Card: {folder / view.CARD[0]}")
        except KeyboardInterrupt:
            display.message(f"The card was left out: {self._again} writes it.")
        except Exception as error:
            if not isinstance(error, OSError):  # if the disk takes no card, it may take no log either
                logging.getLogger(__name__).warning("the run card could not be written", exc_info=True)
            cause = f"{type(error).__name__}: {error}".splitlines()[0]
            display.message(f"The card could not be written ({cause}): {self._again} writes it.")

    def _read(self, has_time: bool, run: Any, evaluated: Any) -> Any:
        """Read evaluations leniently, unless that could take long or cost money."""
        from hone.extensions.viewer.card.lenient import read
        from hone.extensions.viewer.card.measures import Leniency

        if len(self._envs) != 1:
            return Leniency("the run has several tasks")
        (env,) = self._envs
        if env.why_not_graded:
            return Leniency(env.why_not_graded)
        if has_time and not any(map(is_async, env.rubric.funcs.values())) and (env.rubric.inline or env.has_workers):
            return read(env, evaluated, run.info["seed"], LENIENT_SECONDS)
        why = "reward functions might ask a service, or hang" if has_time else "the run was to end at once"
        return Leniency(f"{why}: {self._again} reads it")
