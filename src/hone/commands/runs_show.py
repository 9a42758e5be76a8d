"""`hone runs show RUN`: one page on a run."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hone.commands.runs_words import pool_in_words, print_next, standing, typed
from hone.config.base import BaseConfig
from hone.config.changes import non_defaults
from hone.config.runs import RunsShowConfig
from hone.config.shared import BudgetConfig
from hone.errors import UserError
from hone.runs.budget import in_words
from hone.runs.certificates import certificate_path, pinned
from hone.runs.files import read_json
from hone.runs.listing import find_run
from hone.runs.outputs import AUDIT
from hone.runs.progress import duration
from hone.runs.reader import Run
from hone.runs.summary import Summary, describe_event, local_time, shortened, summarize

INDENT = 13
_ASIDE = {"output_dir", "display", "detach", "seed", "deterministic"}
"""Settings that the page leaves out, or shows elsewhere."""


def run(config: RunsShowConfig) -> int:
    """Prints the page. Returns 0."""
    one = summarize(find_run(config.run))
    width = min(shutil.get_terminal_size((120, 24)).columns, 120)
    print(f"{standing(one)}\n")
    for label, text in _rows(one, config.events):
        wrapped = textwrap.wrap(text, max(width - INDENT, 40), break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(wrapped):
            print(f"{label if number == 0 else '':<{INDENT}}{line}")
    print()
    print_next(one)
    return 0


def _rows(one: Summary, events: int) -> Iterator[tuple[str, str]]:
    """(label, text) of each line; a label is empty where it is the one above."""
    info = one.info
    yield "id", f"{info['id']} ({one.kind}{f' on {one.task}' if one.task else ''}, seed {info['seed']})"
    yield "command", typed(info["command"])
    if settings := _settings(one):
        yield "settings", ", ".join(settings) + " (the rest are defaults)"
    yield from _when(one)
    if "failure" in info:
        yield "failed", info["failure"]
    yield from _machine(info)
    if one.kind == "eval":
        yield from (("result", line) for line in one.progress.evaluation())
        return
    yield "exact", exactness(info)
    yield from (("", f"{name}: {text}") for name, text in info.get("exactness", {}).items())
    if one.progress.history:
        yield "latest", f"step {one.progress.done}: {', '.join(one.progress.summary())}"
    if pool := pool_in_words(one.progress.metrics):
        yield "pool", pool
    for line in one.progress.evaluation():
        yield "held out", f"{line}, at step {one.progress.eval_step}"
    if audit := audit_in_words(one.path):
        yield "audit", audit
    yield from _files(one)
    if spent := _spent(one):
        yield "budget", spent
    for number, event in enumerate(Run(one.path).events()[-events:] if events else []):
        yield "" if number else "events", describe_event(event)
    if certificate := _certificate(one.path):
        yield "certificate", certificate


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


def _settings(one: Summary) -> list[str]:
    """The settings that aren't defaults, as `key=value`."""
    cls = _config_class(one.kind)
    found = non_defaults(cls, one.config) if cls else {}
    return [f"{name}={shortened(value)}" for name, value in found.items() if name not in _ASIDE]


def _config_class(kind: str) -> type[BaseConfig] | None:
    if kind == "rl":
        from hone.config.rl import RLConfig

        return RLConfig
    if kind == "sft":
        from hone.config.sft import SFTConfig

        return SFTConfig
    return None


def _when(one: Summary) -> Iterator[tuple[str, str]]:
    started, ended = local_time(one.info.get("started")), local_time(one.info.get("ended"))
    times = [*([started] if started else []), *([f"ended {ended}"] if ended else [])]
    yield "started", ", ".join([*times, f"{duration(one.seconds)} of work"])
    if parent := one.info.get("parent"):
        yield "parent", f"step {parent['step']} of {parent['dir']} (run {parent['id']})"
    for resume in one.info.get("resumes", []):
        yield "resumed", f"at step {resume['step']}, {local_time(resume['time'])}"


def _machine(info: dict[str, Any]) -> Iterator[tuple[str, str]]:
    hardware, versions = info["hardware"], info["versions"]
    gpu = ", ".join(hardware["gpu"]) if hardware.get("gpu") else "no GPU"
    threads = f"{info['threads']} thread{'s' if info['threads'] != 1 else ''}"
    threads = f"{info['ranks']} ranks, {threads} each" if info.get("ranks", 1) > 1 else threads
    yield "machine", f"{hardware['cpu']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB, {gpu}; {threads}"
    git = info.get("git")
    code = f"; revision {git['revision'][:12]}{' with changes' if git['dirty'] else ''}" if git else ""
    packages = ", ".join(f"{name} {versions[name]}" for name in ("hone-rl", "torch", "python") if versions.get(name))
    yield "code", packages + code


def exactness(info: dict[str, Any]) -> str:
    """Whether another run of the same config gives the same bytes, and if not why."""
    if info["exact"]:
        return "yes: the same config and seed give the same bytes on this machine"
    return "no: " + "; ".join(f"from step {entry['step']} on, {entry['cause']}" for entry in info["inexact"])


def _files(one: Summary) -> Iterator[tuple[str, str]]:
    checkpoints, weights = one.checkpoints, list(Run(one.path).weights())
    yield "checkpoints", _steps_in(checkpoints, one.path / "checkpoints") if checkpoints else "none"
    if weights:
        yield "weights", _steps_in(weights, one.path / "weights")


def _steps_in(found: list[int], folder: Path) -> str:
    shown = found if len(found) <= 6 else [*found[:2], "...", *found[-3:]]
    return f"{folder}/step_N with N = {', '.join(map(str, shown))}"


def _spent(one: Summary) -> str:
    """What is used up of each limit of the run's budget."""
    if not (table := one.config.get("budget")):
        return ""
    limits = BudgetConfig.model_validate(table)
    spent = replace(one.spent, usd=one.spent.usd_at(limits.usd_per_hour or 0.0))
    return ", ".join(in_words(name, spent, limits) for name in ("hours", "usd", "tokens") if name in table)


def _certificate(path: Path) -> str:
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
