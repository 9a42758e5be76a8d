"""Alarms of a run. An alarm reports a problem once until it is over, and may request an action."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from hone.runs.observer import Finding
from hone.runs.view import OVER

ORDER = ("off", "warn", "checkpoint", "pause", "stop")
"""Actions of an alarm, the weakest first."""
_DONE = {"checkpoint": " A checkpoint is saved.", "pause": " The run is saved and paused."}
"""Sentences on the effect of an action. A stopped run prints its own reason."""

Event = dict[str, Any]


def in_words(event: Event) -> str:
    done = _DONE.get(event["action"], "")
    evidence, advice = event["evidence"], event["advice"]
    return f"ALARM {event['name']} at step {event['step']}: {evidence}.\n      What helps: {advice}.{done}"


class Alarms:
    """The alarms of a run: the active alarms, and the requested actions."""

    def __init__(self) -> None:
        self.actions: dict[str, str] = {}
        """Alarm's name → its action; other alarms warn."""
        self.remedy = ""
        """The flag that lets a stopped run go on; `{}` is the alarm's name with dashes."""
        self.asked = "off"
        """The strongest action that is requested and not done yet; `off` if there is none."""
        self.cause = ""
        """The alarm or observer that requested `asked`."""
        self.active: dict[str, int] = {}
        """Active alarm → last step at which its problem was found."""
        self.times: Counter[str] = Counter()

    def restore(self, name: str, events: Iterable[Mapping[str, Any]], step: int) -> None:
        """Read an alarm's earlier events at a resume from `step`, so that an active alarm isn't reported again."""
        kinds = [one["kind"] for one in events if one["kind"] in ("alarm", OVER) and one.get("name") == name]
        self.times[name] = kinds.count("alarm")
        if kinds[-1:] == ["alarm"] and step > 0:
            self.active[name] = step - 1  # no record of every mode has the last step at which it was found

    @property
    def saves(self) -> bool:
        return self.asked in ("checkpoint", "pause")

    def raised(self, step: int, name: str, finding: Finding) -> Event | None:
        """Return the fields of the event for a finding; None if the alarm is off or already active."""
        action = self.actions.get(name, "warn")
        if action == "off":
            return None
        known = name in self.active
        self.active[name] = step
        if known:
            return None
        self.times[name] += 1
        self.ask(action, name)
        value = finding.value if math.isfinite(finding.value) else str(finding.value)
        return {"step": step, "name": name, "action": action} | asdict(finding) | {"value": value}

    def ask(self, action: str, cause: str) -> None:
        """Request an action of `ORDER`, unless a stronger one is pending."""
        if ORDER.index(action) > ORDER.index(self.asked):
            self.asked, self.cause = action, cause

    def done(self) -> None:
        self.asked, self.cause = "off", ""


def took_step(metrics: Mapping[str, Any]) -> bool:
    """Return True if metrics are of a step, not of an evaluation or of the run's end."""
    return any(name in metrics for name in ("reward/mean", "groups/trained", "loss"))
