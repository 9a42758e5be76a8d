"""Checks every step for known problems.

An alarm is raised at the first step at which its rule finds something. It ends when its rule has found nothing for a
window of steps (two windows after its second start, then four). Until then it is not reported again. Alarms depend only
on the metrics, so equal runs raise equal alarms, and a resumed run knows earlier alarms.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hone.extensions.alarms.config import AlarmConfig, AlarmsConfig
from hone.extensions.alarms.history import History
from hone.extensions.alarms.rules import RULES
from hone.runs.alarms import Alarms, Event, in_words, took_step
from hone.runs.observer import Observer
from hone.runs.view import OVER, RunView
from hone.runs.writer import RunWriter

WITHOUT_RULE = ("gap", REGRADED := "regraded")
"""Alarms that `hone.loops.canary` and the check of rewards raise. `regraded` never ends."""
SHIFTED = ("falling_reward", "wrong")
"""Alarms that compare with a run's best value, which falls if a curriculum keeps only harder examples."""


class MetricAlarms:
    """Starts and ends alarms by their rules over metrics, and sets the action of each alarm.

    `info` is run.json. If `shifting` is true, a curriculum chooses prompts, and the alarms `SHIFTED` are off unless the
    config has an action for them.
    """

    def __init__(
        self,
        config: AlarmsConfig,
        alarms: Alarms,
        info: Mapping[str, Any] = MappingProxyType({}),
        shifting: bool = False,
    ) -> None:
        self.config, self.alarms = config, alarms
        self.settings = {name: config.of(name) for name in [*RULES, *WITHOUT_RULE]}
        for name in SHIFTED if shifting else ():
            if getattr(config, name).action is None:
                self.settings[name] = AlarmConfig(action="off")
        alarms.actions = {name: str(one.action) for name, one in self.settings.items()}
        alarms.remedy = "--alarms.{} warn goes on"
        self.history = History(config.window, info)

    def look(self, step: int, metrics: Mapping[str, Any]) -> tuple[list[Event], list[str]]:
        """Return the events of the alarms that the step's metrics raise, and the names of alarms that are over."""
        if not took_step(metrics):
            return [], []
        alarms = self.alarms
        self.history.append(step, {name: value for name, value in metrics.items() if name != "step"})
        raised = []
        for name, rule in RULES.items():
            settings = self.settings[name]
            if settings.action == "off":
                continue
            assert settings.threshold is not None
            finding = rule(self.history, settings.threshold)
            if finding is not None and (event := alarms.raised(step, name, finding)) is not None:
                raised.append(event)
        # An alarm near its threshold is not reported every few steps.
        patience = {name: self.config.window * 2 ** (alarms.times[name] - 1) for name in alarms.active}
        over = [name for name, at in alarms.active.items() if name != REGRADED and step - at >= patience[name]]
        for name in over:
            del alarms.active[name]
        return raised, over


def observer(config: Any, by_program: bool) -> Observer:
    return AlarmWatch()


class AlarmWatch(Observer):
    def before_start(self, run: RunWriter) -> None:
        config: Any = run.config
        shifting = run.info["kind"] == "rl" and config.orchestrator.curriculum.measures
        self.run, self.rules = run, MetricAlarms(config.alarms, run.alarms, run.info, shifting)
        for line in RunView(run.folder).metric_lines():  # so as not to report again what was raised before a resume
            self.rules.look(int(line["step"]), line)
        run.alarms.done()

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        raised, over = self.rules.look(step, metrics)
        for event in raised:
            self.run.event("alarm", **event)
            self.run.display.message(in_words(event))
        for name in over:
            self.run.event(OVER, step, name=name)
