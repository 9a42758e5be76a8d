"""Time and memory that a run will take, printed when it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import RunConfig
from hone.environments import Environment
from hone.extensions.planning.data import Facts, facts_of_tasks
from hone.extensions.planning.devices import this_device
from hone.extensions.planning.report import plan_of, short
from hone.model.chat import ChatRenderer
from hone.model.config import DecoderConfig
from hone.runs.observer import Observer
from hone.runs.writer import RunWriter

EXAMPLES = 16
"""Number of prompts to measure for the forecast. Small, so that the start is not delayed."""


def observer(config: RunConfig, by_program: bool) -> Observer:
    return Forecast()


class Forecast(Observer):
    """Prints the time and memory of a run when it begins, but not when it is resumed."""

    def check(self, training: Any) -> None:
        self._training = training

    def before_start(self, run: RunWriter) -> None:
        training, sft = self._training, self._training.kind == "sft"
        hello = getattr(getattr(training, "processes", training), "hello", None)
        alone = hello is None and (not sft or training.ranks.world == 1)
        decoder, envs = (training.model.config, {}) if sft else (training.decoder, training.envs)
        if run.start_step == 0:
            for line in forecast(training.config, decoder, training.renderer, envs, alone):
                run.display.message(line)


def forecast(
    config: RLConfig | SFTConfig,
    decoder: DecoderConfig,
    renderer: ChatRenderer,
    envs: Mapping[str, Environment] | None = None,
    alone: bool = True,
) -> Iterator[str]:
    """Yield lines to print before step 0: a forecast, or why it is missing.

    `envs` are an RL run's tasks by name, with their data. `alone` is false if the run has several processes: their
    memory can't be forecast.
    """
    try:
        facts = Facts()
        if isinstance(config, RLConfig) and envs:
            facts = facts_of_tasks(config, envs, renderer, EXAMPLES)
        plan = plan_of(config, this_device(config.model.device, measured=False), facts, shape=decoder)
        yield from short(plan if alone else replace(plan, memory=None))
    except Exception as error:
        yield f"No memory estimate: {type(error).__name__}: {error}"
