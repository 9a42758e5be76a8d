"""Alarms: look for what ruins runs at every step, report it once, and act on it as the config says.

An alarm is raised at the first step at which its rule finds something, and is over when the rule has found nothing for
a window of steps, the next time for two, then for four; until then it is not reported again. It is a function of the
metrics alone, so equal runs raise equal alarms, and a resumed run knows what was raised before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hone.config.alarms import Action, AlarmConfig, AlarmsConfig
from hone.errors import Halt
from hone.runs.alarm_rules import RULES, Finding
from hone.runs.files import read_lines
from hone.runs.history import History
from hone.runs.observer import Observer

if TYPE_CHECKING:
    from hone.runs.writer import RunWriter

TRAINED = ("reward/mean", "groups/trained", "loss")
"""Metrics, one of which every step has."""
GAP = "gap"
"""The alarm that has no rule: `hone.orchestrator.canary` raises it."""
SHIFTED = ("falling_reward", "wrong")
"""Alarms that compare with a run's best: a curriculum leaves harder examples than those were."""
OVER = "alarm_over"
"""Kind of the event that an alarm is over."""
ORDER: tuple[Action, ...] = ("off", "warn", "checkpoint", "pause", "stop")
"""Actions, from none to the strongest."""
DONE = {
    "checkpoint": " A checkpoint is saved.",
    "pause": " The run is saved and paused.",
    "stop": " The run is saved and stops.",
}
"""An action's effect, in words."""


@dataclass(frozen=True)
class Alarm:
    """An alarm that is raised at a step, and its action."""

    step: int
    name: str
    action: Action
    finding: Finding

    @property
    def text(self) -> str:
        """What a person reads: evidence, advice, and what is done besides (the end of a run gives its own reason)."""
        found, done = self.finding, "" if self.action == "stop" else DONE.get(self.action, "")
        return f"ALARM {self.name} at step {self.step}: {found.evidence}.\n      What helps: {found.advice}.{done}"

    def fields(self) -> dict[str, Any]:
        """Return the fields of its event."""
        found = self.finding
        value = found.value if math.isfinite(found.value) else str(found.value)
        fields = {"name": self.name, "action": self.action, "value": value, "threshold": found.threshold}
        return fields | {"evidence": found.evidence, "advice": found.advice}


class AlarmStop(Halt):
    """The alarm `name` ends the run after a step, as the config wants it: stopped, not failed."""

    def __init__(self, step: int, name: str) -> None:
        super().__init__(f"stopped at step {step} by the alarm {name} (--alarms.{name.replace('_', '-')} warn goes on)")
        self.name = name


class Alarms:
    """The alarms of a run: which ones are raised, and what they ask for.

    `weights` are the reward components' by name; without them no component can be an alarm. `correctness` is the
    component that decides what is correct. `shifting`: prompts are chosen by what was solved, and the alarms `SHIFTED`
    are off unless the config has an action of their own.
    """

    def __init__(
        self,
        config: AlarmsConfig,
        weights: Mapping[str, float] | None = None,
        correctness: str | None = None,
        shifting: bool = False,
    ) -> None:
        self.config = config
        self.settings = {name: config.of(name) for name in [*RULES, GAP]}
        for name in SHIFTED if shifting else ():
            if getattr(config, name).action is None:
                self.settings[name] = AlarmConfig(action="off")
        self.history = History(config.window, weights, correctness)
        self.asked: Action = "off"
        """The strongest thing that is asked for and not done yet: checkpoint, pause or stop; else off."""
        self.cause = ""
        """The alarm that asked for it."""
        self._seen: dict[str, int] = {}
        self._times: Counter[str] = Counter()

    def restore(self, lines: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]] = ()) -> None:
        """Take in the metrics and the events before a resume, so as not to report their alarms again."""
        for line in lines:
            self.look(int(line["step"]), line)
        kinds = [event["kind"] for event in events if event.get("name") == GAP and event["kind"] in ("alarm", OVER)]
        self._times[GAP] = kinds.count("alarm")
        if kinds and kinds[-1] == "alarm" and len(self.history):
            self._seen[GAP] = self.history.steps[-1]  # when it was measured last is in no metric of every mode
        self.done()

    @property
    def saves(self) -> bool:
        """True if a checkpoint is asked for, with or without a pause after it."""
        return self.asked in ("checkpoint", "pause")

    @property
    def active(self) -> list[str]:
        """Names of the alarms that are raised and not over."""
        return list(self._seen)

    def look(self, step: int, metrics: Mapping[str, Any]) -> tuple[list[Alarm], list[str]]:
        """Return the alarms that the step's metrics raise, and the names of those that are over."""
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
            if finding is not None and (alarm := self.raised(step, name, finding)) is not None:
                raised.append(alarm)
        # What hovers about its threshold is not reported every few steps.
        patience = {name: self.config.window * 2 ** (self._times[name] - 1) for name in self._seen}
        over = [name for name, seen in self._seen.items() if step - seen >= patience[name]]
        for name in over:
            del self._seen[name]
        return raised, over

    def raised(self, step: int, name: str, finding: Finding) -> Alarm | None:
        """Return the alarm of a finding; None if it is raised already, or off."""
        action = self.settings[name].action
        assert action is not None
        if action == "off":
            return None
        known = name in self._seen
        self._seen[name] = step
        if known:
            return None
        self._times[name] += 1
        if ORDER.index(action) > ORDER.index(self.asked):
            self.asked, self.cause = action, name
        return Alarm(step, name, action, finding)

    def done(self) -> None:
        """Forget the requested action: it is done."""
        self.asked, self.cause = "off", ""


class AlarmWatch(Observer):
    """Looks at every step of a run for its alarms."""

    def before_start(self, run: RunWriter) -> None:
        self.run = run
        run.alarms.restore(read_lines(run.folder / "metrics.jsonl"), read_lines(run.folder / "events.jsonl"))

    def after_step(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any]) -> None:
        raised, over = self.run.alarms.look(step, metrics)
        for alarm in raised:
            self.run.alarm(alarm)
            self.run.display.message(alarm.text)
        for name in over:
            self.run.event(OVER, step, name=name)


def took_step(metrics: Mapping[str, Any]) -> bool:
    """Return True for metrics of a step, False for metrics of an evaluation or of the run's end."""
    return any(name in metrics for name in TRAINED)
