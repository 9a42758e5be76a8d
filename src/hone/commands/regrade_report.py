"""What `hone regrade` says: on the screen, and as JSON."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import Any

import tomli_w

from hone.config.reproduce import RegradeConfig
from hone.config.shared import EnvConfig
from hone.pages import visible
from hone.reproduce.attribution import Window
from hone.reproduce.regrade import Pair, Regraded, typical
from hone.reproduce.verdict import Verdict
from hone.runs import Run, provenance
from hone.runs.liveness import holder
from hone.runs.summary import standing

SHOWN = 3
"""Completions about which the graders disagree that are shown."""
_INDENT = 14


@dataclass(frozen=True)
class Result:
    """All there is to report. `own` is why the run's own task could not be had, empty if it could."""

    run: Run
    task: EnvConfig
    recorded_by: str
    graded_by: str
    same_grader: bool
    own: str
    steps: list[int]
    all_steps: int
    found: Regraded
    windows: list[Window]
    verdict: Verdict
    reads_state: bool


def in_words(env_id: str, args: dict[str, Any]) -> str:
    """`gsm8k (mode two_part)`"""
    said = ", ".join(f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in args.items())
    return f"{env_id} ({said})" if said else env_id


def record(result: Result) -> dict[str, Any]:
    """The result as JSON."""
    found, check = result.found, result.found.check
    return {
        "run": str(result.run.path),
        "id": result.run.info["id"],
        "numerics": {"recorded": provenance.numerics(result.run.info), "now": provenance.NUMERICS},
        "recorded_by": result.recorded_by,
        "graded_by": result.graded_by,
        "steps": result.steps,
        "completions": len(found.columns.step),
        "failed": {"recorded": found.failed_old, "now": found.failed_new},
        "check": {"completions": check.count, "same": check.same, "impossible": result.own or None},
        "windows": [one.record() for one in result.windows],
        "verdict": result.verdict.record(),
        "disagreements": found.disagreeing,
    }


def disagreements(result: Result) -> list[Pair]:
    """The completions to look at: some of usual length about which the graders disagree, one of an example, those of
    the last window first.
    """
    after = result.verdict.after
    late = [pair for pair in result.found.disagreements if after.first <= pair.recorded.step <= after.last]
    others = [pair for pair in result.found.disagreements if not after.first <= pair.recorded.step <= after.last]
    found = [*typical(late), *typical(others)]
    by_example = {pair.recorded.example.id: pair for pair in reversed(found)}
    return [pair for pair in found if by_example[pair.recorded.example.id] is pair][:SHOWN]


def say(result: Result, config: RegradeConfig) -> None:
    """Prints the report."""
    one = result.run
    line("run", f"{one.path}: {standing(one.info, holder(one.path))}, {one.info['id']}")
    line("recorded by", result.recorded_by)
    line("graded by", "the same task" if result.same_grader else result.graded_by)
    line("completions", _extent(result))
    for text in checks(result):
        line("check", text)
    print()
    print(table(result.windows, result.same_grader))
    print()
    line("verdict", result.verdict.sentence)
    if not result.same_grader:
        _say_disagreements(result, config.limit_text)
    if config.output is not None:
        line("scores", str(config.output))
    for what, command in next_commands(result, config):
        print(f"To {what}:\n  {command}")


def line(label: str, text: str) -> None:
    print(f"{label:<{_INDENT}}{text}")


def _extent(result: Result) -> str:
    found, steps = result.found, result.steps
    count = len(found.columns.step)
    text = f"{count:,} of {len(steps):,} steps, {steps[0]} to {steps[-1]}"
    if len(steps) < result.all_steps:
        text += f" (of {result.all_steps:,}: a sample)"
    if found.failed_old or found.failed_new:
        text += f"; without {found.failed_old:,} that could not be graded then and {found.failed_new:,} now"
    return text + (f" ({found.failure})" if found.failed_new else "")


def checks(result: Result) -> list[str]:
    """Whether the run's own task gives what was recorded, and what can't be graded exactly."""
    found = []
    check = result.found.check
    if result.own:
        found.append(f"none, for the run's own task can't be had: {result.own}")
    elif check.count:
        told = (
            f"{check.same:,} of {check.count:,} graded again by the run's own task have the recorded reward and outcome"
        )
        found.append(told)
    if check.first is not None:
        pair = check.first
        found.append(
            f"the first that differs: sample {pair.recorded.reply.sample_id} was {_said(pair, old=True)}, and is now "
            f"{_said(pair, old=False)}: the task has changed since, or does not always grade alike"
        )
    if other_numerics := provenance.other_numerics(result.run.info):
        found.append(f"the run was {other_numerics}: graders of hone itself may have changed, too")
    if result.reads_state:
        found.append(
            "reward functions read the state of a conversation, which is not recorded: they got the one it begins with"
        )
    return found


def _said(pair: Pair, old: bool) -> str:
    score = pair.recorded.score if old else pair.score
    return str(score.outcome) if score.outcome.is_failure else f"{score.outcome} ({score.reward:.6g})"


def table(windows: list[Window], same_grader: bool) -> str:
    """The windows as text, a line each."""
    heads = ["steps", "recorded", "regraded", "right: both", "only old", "only new", "truncated", "tokens"]
    rows = [heads]
    for one in windows:
        shares = (one.right_both, one.right_old, one.right_new, one.truncated)
        numbers = [f"{one.recorded:.3f}", f"{one.regraded:.3f}", *(f"{share:.0%}" for share in shares)]
        rows.append([one.name, *numbers, f"{one.length:.1f}"])
    if same_grader:
        rows = [[*row[:4], *row[6:]] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(pairs))
        for row in rows
        for pairs in [list(zip(row, widths, strict=True))]
    )


def _say_disagreements(result: Result, limit: int) -> None:
    for pair in disagreements(result):
        recorded = pair.recorded
        print(f"\nstep {recorded.step}, sample {recorded.reply.sample_id}, {recorded.length} tokens:")
        for text in visible(recorded.text, limit).splitlines() or [""]:
            print(f"  | {text}")
        print(f"  recorded: {_said(pair, True)}, {visible(recorded.score.detail, limit)}")
        print(f"  now:      {_said(pair, False)}, {visible(pair.score.detail, limit)}")
    print()


def next_commands(result: Result, config: RegradeConfig) -> list[tuple[str, str]]:
    """What makes sense now, as (what for, command to paste)."""
    quoted = shlex.quote(str(result.run.path))
    if result.same_grader:
        return [("ask another grader", f"hone regrade {quoted} --env ID")]
    if result.verdict.cause != "parser":
        return []
    task = result.task
    audit = ["hone", "audit", task.id, *(["-a", json.dumps(task.args)] if task.args else [])]
    audit += ["--env-template", json.dumps(task.template)] if task.template else []
    return [
        ("see what else the recorded grader loses", shlex.join(audit)),
        _training(result, config),
    ]


def _training(result: Result, config: RegradeConfig) -> tuple[str, str]:
    """How to train with the other grader: by flags, or by a table where flags would keep what the run's config says."""
    task, path = result.task, result.run.path
    other = config.env.id is not None
    if other and (task.args.keys() - config.env.args.keys() or task.template or config.env.template):
        table = {"orchestrator": {"env": {"id": config.env.id, "args": config.env.args}}}
        text = tomli_w.dumps(table).strip().replace("\n\n", "\n").replace("\n", "\n  ")
        return f"train with the other one, put this in place of the task in a copy of {path}/config.toml", text
    words = ["hone", "rl", "@", f"{path}/config.toml", "--output-dir", f"{path}-regraded"]
    if config.env.id is not None:
        words += ["--orchestrator.env.id", config.env.id]
    if config.env.args:
        words += ["--orchestrator.env.args", json.dumps(config.env.args)]
    return "train with the other one", shlex.join(words)
