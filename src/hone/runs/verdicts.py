"""What stands beside a run's numbers, as facts and in words: exactness, alarms, the audit, a certificate, settings.

Reads the run's files and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.config.changes import non_defaults
from hone.errors import UserError
from hone.runs import provenance
from hone.runs.alarms import OVER
from hone.runs.certificates import certificate_path, pinned
from hone.runs.files import read_json
from hone.runs.outputs import AUDIT
from hone.runs.reader import Run
from hone.runs.settings import config_class
from hone.runs.summary import Summary, local_time, shortened

_ASIDE = {"output_dir", "display", "detach", "seed", "deterministic", "predict", "report"}
"""Settings that are left out, or told elsewhere."""


@dataclass(frozen=True)
class Raised:
    """An alarm that was raised, and the step at which it was over: None while it stands."""

    name: str
    since: int
    over: int | None
    evidence: str

    def __str__(self) -> str:
        span = f"since step {self.since}; then" if self.over is None else f"from step {self.since} to {self.over}"
        return f"{self.name} {span}: {self.evidence}"


def alarms_of(path: Path) -> list[Raised]:
    """Each alarm that was raised in a run, in order."""
    return alarms_in(Run(path).events())


def alarms_in(events: Iterable[Mapping[str, Any]]) -> list[Raised]:
    """The same of these events."""
    raised: list[Raised] = []
    for event in events:
        kind, name, step = event.get("kind"), str(event.get("name")), event.get("step") or 0
        if kind == "alarm":
            raised.append(Raised(name, step, None, str(event.get("evidence"))))
        if kind == OVER:
            raised = [
                Raised(one.name, one.since, step, one.evidence) if one.over is None and one.name == name else one
                for one in raised
            ]
    return raised


def audit_in_words(path: Path) -> str:
    """What the audit before step 0 found; empty for a run without one."""
    file = path / AUDIT
    if not file.is_file():
        return ""
    try:
        facts = read_json(file)
        if facts["verdict"] == "skipped":
            return f"none ({facts['why']})"
        found = [finding for check in facts["checks"] for finding in check["findings"]]
        count = f"{facts['texts']} texts for {facts['examples']} examples"
    except (UserError, KeyError, TypeError):
        return f"{file.name} can't be read"
    bad = [f"{f['name']} ({f['verdict']})" for f in found if f["verdict"] in ("fail", "warn")]
    return f"{', '.join(dict.fromkeys(bad)) or 'nothing found'}, of {count}"


def exactness(info: Mapping[str, Any]) -> str:
    """Whether another run of the same config gives the same bytes by its settings, and if not why."""
    if info["exact"]:
        return "yes, by its settings: the same config and seed give the same bytes on this machine"
    return "no: " + "; ".join(f"from step {entry['step']} on, {entry['cause']}" for entry in info["inexact"])


def settings_in_words(one: Summary) -> list[str]:
    """The settings that aren't defaults, as `key=value`."""
    found = {} if one.kind == "eval" else non_defaults(config_class(one.kind), one.config)
    return [f"{name}={shortened(value)}" for name, value in found.items() if name not in _ASIDE]


def machine_in_words(info: Mapping[str, Any]) -> str:
    """The hardware that a run was made on, and how many threads and ranks used it."""
    hardware, threads = info["hardware"], info["threads"]
    gpu = ", ".join(hardware["gpu"]) if hardware.get("gpu") else "no GPU"
    used = f"{threads} thread{'s' if threads != 1 else ''}"
    used = f"{info['ranks']} ranks, {used} each" if info.get("ranks", 1) > 1 else used
    cpu, cores, memory = (hardware.get(name, "?") for name in ("cpu", "cores", "memory_gib"))
    return f"{cpu}, {cores} cores, {memory} GiB, {gpu}; {used}"


def code_in_words(info: Mapping[str, Any]) -> str:
    """Versions of hone, torch and Python, hone's numerics, and the git revision of the code around it."""
    git, versions = info.get("git"), info["versions"]
    revision = f"; revision {git['revision'][:12]}{' with changes' if git['dirty'] else ''}" if git else ""
    known = (f"{name} {versions[name]}" for name in ("hone-rl", "torch", "python") if versions.get(name))
    return ", ".join([*known, f"numerics {provenance.numerics(info)}"]) + revision


def certificate_in_words(path: Path) -> str:
    """The verdict of the certificate that `hone verify` left beside the run; empty without one."""
    file = certificate_path(path)
    if not file.is_file():
        return ""
    try:
        facts = read_json(file)
        verdict, date, files = (facts[name] for name in ("verdict", "date", "sha256"))
        steps = [str(check["step"]) for check in facts["steps"]]
    except (UserError, KeyError, TypeError):
        return f"{file.name} can't be read: verify the run again"
    again = f", step{'s' if len(steps) > 1 else ''} {', '.join(steps)} done again" if steps else ""
    stale = "; the run has changed since: verify it again" if files != pinned(path) else ""
    return f"{verdict}{again}, {local_time(date)} ({file.name} beside the run){stale}"
