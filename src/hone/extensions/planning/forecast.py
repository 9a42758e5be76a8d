"""Settings that surprise, said when a run begins."""

from __future__ import annotations

from typing import Any

from hone.config.shared import RunConfig
from hone.extensions.planning.data import Facts, facts_of_tasks
from hone.extensions.planning.devices import this_device
from hone.extensions.planning.report import plan_of
from hone.runs.observer import Observer
from hone.runs.writer import RunWriter

EXAMPLES = 16
"""Number of prompts of a task to measure. Small, so that the start is not delayed."""


def observer(config: RunConfig, by_program: bool) -> Observer:
    """Return the observer that warns of settings."""
    return Forecast()


class Forecast(Observer):
    """Says which settings of a run surprise when it begins; not when it is resumed."""

    def check(self, training: Any) -> None:
        self._training = training

    def before_start(self, run: RunWriter) -> None:
        training, sft = self._training, self._training.kind == "sft"
        if run.start_step:
            return
        decoder, envs = (training.model.config, {}) if sft else (training.decoder, training.envs)
        try:
            facts = facts_of_tasks(training.config, envs, training.renderer, EXAMPLES) if envs else Facts()
            device = this_device(training.config.model.device, measured=False)
            lines = [f"note: {text}" for text in plan_of(training.config, device, facts, shape=decoder).surprises]
        except Exception as error:  # the run goes on without
            lines = [f"No plan: {type(error).__name__}: {error}"]
        for line in lines:
            run.display.message(line)
