"""Alarms: look for what ruins runs at every step, report it once, and act on it as the config says.

An alarm is raised at the first step at which its rule finds something, and is over when the rule has found nothing for
a window of steps, the next time for two, then for four; until then it is not reported again. It is a function of the
metrics alone, so equal runs raise equal alarms, and a resumed run knows what was raised before. The alarms
`WITHOUT_RULE` depend on other things than the metrics.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hone.config.alarms import Action, AlarmConfig, AlarmsConfig
from hone.runs.alarm_rules import RULES
from hone.runs.history import History
from hone.runs.observer import Finding, Observer
from hone.runs.view import OVER, RunView

if TYPE_CHECKING:
    from hone.runs.writer import RunWriter

TRAINED = ("reward/mean", "groups/trained", "loss")
"""Metrics, one of which every step has."""
GAP, REGRADED = WITHOUT_RULE = ("gap", "regraded")
"""Alarms that other modules raise: `hone.orchestrator.canary`, and `reward_check` of the extension. `regraded` is never
over."""
SHIFTED = ("falling_reward", "wrong")
"""Alarms that compare with a run's best: a curriculum leaves harder examples than those were."""
ORDER: tuple[Action, ...] = ("off", "warn", "checkpoint", "pause", "stop")
"""Actions, from none to the strongest."""
_DONE = {"checkpoint": " A checkpoint is saved.", "pause": " The run is saved and paused."}
"""An action's effect, in words; the end of a run gives its own reason."""


Event = dict[str, Any]


def in_words(event: Event) -> str:
    """Return an alarm's event as a person reads it: evidence, advice, and what is done besides."""
    done = _DONE.get(event["action"], "")
    evidence, advice = event["evidence"], event["advice"]
    return f"ALARM {event['name']} at step {event['step']}: {evidence}.\n      What helps: {advice}.{done}"


class Alarms:
    """The alarms of a run: which ones are raised, and what they ask for.

    `weights` are the reward components', `correctness` is the one that decides what is correct. `shifting`: prompts are
    chosen by what was solved, and the alarms `SHIFTED` are off unless the config has an action of their own.
    """

    def __init__(
        self,
        config: AlarmsConfig,
        weights: Mapping[str, float] | None = None,
        correctness: str | None = None,
        shifting: bool = False,
    ) -> None:
        self.config = config
        self.settings = {name: config.of(name) for name in [*RULES, *WITHOUT_RULE]}
        for name in SHIFTED if shifting else ():
            if getattr(config, name).action is None:
                self.settings[name] = AlarmConfig(action="off")
        self.history = History(config.window, weights, correctness)
        self.asked: Action = "off"
        """The strongest thing that is asked for and not done yet: checkpoint, pause or stop; else off."""
        self.cause = ""
        """The alarm that asked for it."""
        self.active: dict[str, int] = {}
        """The alarms that are raised and not over, with the step at which each was found last."""
        self._times: Counter[str] = Counter()

    def restore(self, lines: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]] = ()) -> None:
        """Take in the metrics and the events before a resume, so as not to report their alarms again."""
        for line in lines:
            self.look(int(line["step"]), line)
        kinds: dict[str, list[str]] = {name: [] for name in WITHOUT_RULE}
        for event in events:
            if event["kind"] in ("alarm", OVER) and event.get("name") in kinds:
                kinds[event["name"]].append(event["kind"])
        for name, of_alarm in kinds.items():
            self._times[name] = of_alarm.count("alarm")
            if of_alarm[-1:] == ["alarm"] and len(self.history):
                self.active[name] = self.history.steps[-1]  # when it was found last is in no metric of every mode
        self.done()

    @property
    def saves(self) -> bool:
        """True if a checkpoint is asked for, with or without a pause after it."""
        return self.asked in ("checkpoint", "pause")

    def look(self, step: int, metrics: Mapping[str, Any]) -> tuple[list[Event], list[str]]:
        """Return the events of the alarms that the step's metrics raise, and the names of those that are over."""
        if not took_step(metrics):
            return [], []
        self.history.append(step, {name: value for name, value in metrics.items() if name != "step"})
        raised = []
        for name, rule in RULES.items():
            settings = self.settings[name]
            if settings.action == "off":
                continue
            assert settings.threshold is not None
            finding = rule(self.history, settings.threshold)
            if finding is not None and (event := self.raised(step, name, finding)) is not None:
                raised.append(event)
        # What hovers about its threshold is not reported every few steps.
        patience = {name: self.config.window * 2 ** (self._times[name] - 1) for name in self.active}
        over = [name for name, at in self.active.items() if name != REGRADED and step - at >= patience[name]]
        for name in over:
            del self.active[name]
        return raised, over

    def raised(self, step: int, name: str, finding: Finding) -> Event | None:
        """Return the fields of a finding's event; None if its alarm is raised already, or off."""
        action = self.settings[name].action
        assert action is not None
        if action == "off":
            return None
        known = name in self.active
        self.active[name] = step
        if known:
            return None
        self._times[name] += 1
        if ORDER.index(action) > ORDER.index(self.asked):
            self.asked, self.cause = action, name
        value = finding.value if math.isfinite(finding.value) else str(finding.value)
        return {"step": step, "name": name, "action": action} | asdict(finding) | {"value": value}

    def done(self) -> None:
        """Forget the requested action: it is done."""
        self.asked, self.cause = "off", ""


class AlarmWatch(Observer):
    """Looks at every step of a run for its alarms."""

    def before_start(self, run: RunWriter) -> None:
        self.run = run
        files = RunView(run.folder)
        run.alarms.restore(files.metric_lines(), files.events())

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        raised, over = self.run.alarms.look(step, metrics)
        for event in raised:
            self.run.event("alarm", **event)
            self.run.display.message(in_words(event))
        for name in over:
            self.run.event(OVER, step, name=name)


def took_step(metrics: Mapping[str, Any]) -> bool:
    """Return True for metrics of a step, False for metrics of an evaluation or of the run's end."""
    return any(name in metrics for name in TRAINED)
