"""`hone runs show RUN`: one page on a run."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hone.config.runs import RunsShowConfig
from hone.config.shared import BudgetConfig
from hone.runs import predictions
from hone.runs.alarms import OVER
from hone.runs.budget import in_words
from hone.runs.listing import find_run
from hone.runs.progress import duration
from hone.runs.reader import Run
from hone.runs.summary import Summary, describe_event, local_time, summarize
from hone.runs.verdicts import (
    alarms_of,
    audit_in_words,
    certificate_in_words,
    code_in_words,
    exactness,
    machine_in_words,
    settings_in_words,
)
from hone.runs.words import pool_in_words, print_next, standing, typed

INDENT = 13


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
    if settings := settings_in_words(one):
        yield "settings", ", ".join(settings) + " (the rest are defaults)"
    yield from _when(one)
    yield from (("" if number else "damaged", sentence) for number, sentence in enumerate(one.damage))
    if "failure" in info:
        yield "failed", info["failure"]
    yield "machine", machine_in_words(info)
    yield "code", code_in_words(info)
    if one.kind == "eval":
        yield from (("result", line) for line in one.progress.evaluation())
        return
    yield "exact", exactness(info)
    yield from (("", f"{name}: {text}") for name, text in info.get("exactness", {}).items())
    if one.progress.history:
        yield "latest", f"step {one.progress.done}: {', '.join(one.progress.summary())}"
    if pool := pool_in_words(one.progress.metrics):
        yield "pool", pool
    yield from (("" if number else "alarms", str(alarm)) for number, alarm in enumerate(alarms_of(one.path)))
    for line in one.progress.evaluation():
        yield "held out", f"{line}, at step {one.progress.eval_step}"
    yield from _predicted(one)
    if audit := audit_in_words(one.path):
        yield "audit", audit
    yield from _files(one)
    if spent := _spent(one):
        yield "budget", spent
    yield from _events(one, events)
    if certificate := certificate_in_words(one.path):
        yield "certificate", certificate


def _events(one: Summary, most: int) -> Iterator[tuple[str, str]]:
    """The last of its events, but for alarms, which have lines of their own; and how many there are, if more."""
    told = [event for event in Run(one.path).events() if event.get("kind") not in ("alarm", OVER)]
    for number, event in enumerate(told[-most:] if most else []):
        yield "" if number else "events", describe_event(event)
    if 0 < most < len(told):
        yield "", f"(the last {most} of {len(told)}: --events {len(told)} shows all)"


def _predicted(one: Summary) -> Iterator[tuple[str, str]]:
    """What became of its predictions."""
    if damage := predictions.problem(one.info, one.path):
        yield "predicted", damage
        return
    for number, line in enumerate(predictions.in_words(one.info, one.path)):
        yield "" if number else "predicted", line


def _when(one: Summary) -> Iterator[tuple[str, str]]:
    started, ended = local_time(one.info.get("started")), local_time(one.info.get("ended"))
    times = [*([started] if started else []), *([f"ended {ended}"] if ended else [])]
    yield "started", ", ".join([*times, f"{duration(one.seconds)} of wall time"])
    if parent := one.info.get("parent"):
        yield "parent", f"step {parent['step']} of {parent['dir']} (run {parent['id']})"
    for resume in one.info.get("resumes", []):
        yield "resumed", f"at step {resume['step']}, {local_time(resume['time'])}"


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
