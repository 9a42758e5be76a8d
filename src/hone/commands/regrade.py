"""`hone regrade RUN`: did the model change, or what was made of its answers?

hone regrade outputs                                        # with the run's own task: the recorded rewards again
hone regrade outputs --env.args.mode two_part               # with other arguments of it
hone regrade outputs --env gsm8k                            # with another task
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import tomli_w

from hone.commands.status import Status
from hone.config.reproduce import RegradeConfig
from hone.config.shared import EnvConfig
from hone.environments.loading import configured, load_environment
from hone.environments.task_files import refuse_other_task
from hone.environments.template import Template
from hone.errors import UserError
from hone.pages import visible
from hone.reproduce.attribution import Window, window, windows
from hone.reproduce.regrade import Grader, Pair, Regraded, regrade, sort_by_typical_length, spread
from hone.reproduce.verdict import Verdict, choose_ends, judge
from hone.runs import Run, provenance
from hone.runs.files import write_file
from hone.runs.listing import find_run
from hone.runs.outputs import check_target, holder
from hone.runs.summary import refuse_interrupted, status_of

SHOWN = 3
"""Completions about which the graders disagree that are shown."""


@dataclass(frozen=True)
class Result:
    """All there is to report. `own_missing` is why the run's own task could not be loaded, empty if it could."""

    run: Run
    task: EnvConfig
    recorded_by: str
    graded_by: str
    same_grader: bool
    reads_state: bool
    own_missing: str
    steps: list[int]
    all_steps: int
    regraded: Regraded
    windows: list[Window]
    verdict: Verdict


def run(config: RegradeConfig) -> int:
    """Grade again and report; return 0, whatever came out."""
    recorded = Run(find_run(config.run))
    refuse_interrupted(recorded.path)
    if (kind := recorded.info["kind"]) != "rl":
        raise UserError(
            f"{recorded.path} is a run of `hone {kind}`, which records no rollouts: name a run of `hone rl`"
        )
    json_file = config.as_json.file if config.as_json else None
    for flag, path in (("--output", config.output), ("--json", json_file)):
        if path is not None:
            check_target(path, flag)
    quiet = config.as_json is not None and json_file is None
    with redirect_stdout(sys.stderr) if quiet else nullcontext():  # what a task prints is no JSON
        result = grade_again(config, recorded, quiet)
    if config.output is not None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(pa.concat_tables(result.regraded.scores), sink, compression="zstd")
        write_file(config.output, sink.getvalue().to_pybytes())
    if config.as_json is not None:
        text = json.dumps(as_record(result), indent=2, ensure_ascii=False) + "\n"
        if json_file is None:
            sys.stdout.write(text)
            return 0
        write_file(json_file, text)
    print_report(result, config)
    return 0


def grade_again(config: RegradeConfig, recorded: Run, quiet: bool) -> Result:
    """Load the graders, grade the chosen steps and judge the change."""
    task = EnvConfig.model_validate(recorded.config.get("orchestrator", {}).get("env", {}))

    def refuse_other() -> None:
        digest = recorded.info.get("sources", {}).get("environment")
        refuse_other_task(task.id, task.args, digest, config.trust_local_task)

    own, own_missing = None, ""
    try:
        refuse_other()
        own = Grader(configured(task.id, task.args, task.template, "orchestrator.env.template"))
    except UserError as error:
        own_missing = str(error)
    asked, graded_by = config.env, describe(task.id, task.args)
    if asked.id is not None or asked.args or asked.template is not None:
        if asked.id is None:
            refuse_other()
        env_id, args = (task.id, task.args | asked.args) if asked.id is None else (asked.id, asked.args)
        grader, graded_by = Grader(load_environment(env_id, **args), _template(asked.template)), describe(env_id, args)
    elif own is None:
        raise UserError(f"the run's own task can't be had ({own_missing}): name one that grades with --env ID")
    else:
        grader = own
    graders = [one for one in {id(grader): grader, id(own): own}.values() if one is not None]
    steps, all_steps = choose_steps(config, recorded)
    for one in graders:
        one.env.use_workers(config.grading)
    status = Status(sys.stderr)
    try:
        regraded = regrade(
            recorded,
            steps,
            grader,
            own,
            seed=recorded.info["seed"],
            check=config.check,
            max_failed=config.grading.max_failed,
            keep_scores=config.output is not None,
            progress=lambda done: None if quiet else status(f"regrading step {done} of {len(steps)}"),
        )
    finally:
        status.clear()
        for one in graders:
            one.env.close_workers()
    cut = windows(regraded.points)
    if not cut:
        raise UserError(
            f"no completion of {recorded.path} was graded both times: {regraded.failed_old:,} failed when they were "
            f"recorded, {regraded.failed_new:,} now ({regraded.failure or 'no failure now'})"
        )
    ends = choose_ends(cut) if config.from_ is None else _named_ends(config, regraded.points)
    return Result(
        run=recorded,
        task=task,
        recorded_by=describe(task.id, task.args),
        graded_by=graded_by,
        same_grader=grader is own,
        reads_state=grader.reads_state,
        own_missing=own_missing,
        steps=steps,
        all_steps=all_steps,
        regraded=regraded,
        windows=cut,
        verdict=judge(*ends, cut, same_grader=grader is own),
    )


def describe(env_id: str, args: dict[str, Any]) -> str:
    """Format `gsm8k (mode two_part)`."""
    texts = (f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in args.items())
    return f"{env_id} ({', '.join(texts)})" if args else env_id


def _template(fields: dict[str, Any] | None) -> Template | None:
    if fields is None:
        return None
    if unknown := fields.keys() - {"answer", "info"}:
        raise UserError(
            f"env.template makes {sorted(unknown)[0]!r}, but what is graded again has its prompt: it may make "
            "answer and info"
        )
    return Template(fields, "env.template")


def steps_within(text: str | None, steps: Sequence[int], flag: str) -> list[int]:
    """Return those of the steps that `A:B` means. UserError if it is none of them."""
    first, _, last = (text or ":").partition(":")
    inside = [step for step in steps if int(first or 0) <= step and (not last or step < int(last))]
    if not inside:
        raise UserError(f"{flag} {text} holds none of the recorded steps {steps[0]} to {steps[-1]}")
    return inside


def choose_steps(config: RegradeConfig, recorded: Run) -> tuple[list[int], int]:
    """Return the steps to grade, one in `every` and no more than hold `max_rollouts`, and how many were asked for."""
    recorded_steps = recorded.rollout_steps()
    if not recorded_steps:
        raise UserError(f"{recorded.path} has no rollouts yet: there is nothing to grade")
    inside = steps_within(config.steps, recorded_steps, "--steps")
    steps = inside[:: config.every]
    if config.max_rollouts is not None:
        largest = max(len(recorded.rollouts(step, ["step"])) for step in steps)
        steps = spread(steps, max(1, config.max_rollouts // largest))
    return steps, len(inside)


def _named_ends(config: RegradeConfig, points: np.ndarray) -> tuple[Window, Window]:
    steps, ends = sorted({int(step) for step in points["step"]}), []
    for flag, text in (("--from", config.from_), ("--to", config.to)):
        inside = steps_within(text, steps, flag)
        if (one := window(points, inside[0], inside[-1])) is None:
            raise UserError(f"{flag} {text} holds no completion that both graders could grade")
        ends.append(one)
    return ends[0], ends[1]


def as_record(result: Result) -> dict[str, Any]:
    """Return the result as JSON-ready values."""
    regraded, info = result.regraded, result.run.info
    check = {"completions": regraded.checked, "same": regraded.same, "impossible": result.own_missing or None}
    return {
        "run": str(result.run.path),
        "id": info["id"],
        "numerics": {"recorded": provenance.numerics(info), "now": provenance.NUMERICS},
        "recorded_by": result.recorded_by,
        "graded_by": result.graded_by,
        "steps": result.steps,
        "completions": len(regraded.points),
        "failed": {"recorded": regraded.failed_old, "now": regraded.failed_new},
        "check": check,
        "windows": [one.record() for one in result.windows],
        "verdict": result.verdict.record(),
        "disagreements": regraded.disagreeing,
    }


def print_report(result: Result, config: RegradeConfig) -> None:
    """Print what was graded, the windows, the verdict, and completions about which the graders disagree."""
    one, regraded, steps = result.run, result.regraded, result.steps
    lines = [
        ("run", f"{one.path}: {status_of(one.info, holder(one.path))}, {one.info['id']}"),
        ("recorded by", result.recorded_by),
        ("graded by", "the same task" if result.same_grader else result.graded_by),
    ]
    extent = f"{len(regraded.points):,} of {len(steps):,} steps, {steps[0]} to {steps[-1]}"
    if len(steps) < result.all_steps:
        extent += f" (of {result.all_steps:,}: a sample)"
    if regraded.failed_old or regraded.failed_new:
        extent += f"; without {regraded.failed_old:,} that could not be graded then and {regraded.failed_new:,} now"
        extent += f" ({regraded.failure})" if regraded.failed_new else ""
    lines += [("completions", extent), *(("check", text) for text in check_lines(result))]
    for label, text in lines:
        print(f"{label:<14}{text}")
    print(f"\n{format_table(result.windows, result.same_grader)}\n\nverdict       {result.verdict.sentence}")
    if not result.same_grader:
        for pair in choose_disagreements(result):
            recorded, limit = pair.recorded, config.limit_text
            print(f"\nstep {recorded.step}, sample {recorded.reply.sample_id}, {recorded.length} tokens:")
            for text in visible(recorded.text, limit).splitlines() or [""]:
                print(f"  | {text}")
            for label, score in (("recorded:", recorded.score), ("now:", pair.score)):
                print(f"  {label:<9} {_outcome(score)}, {visible(score.detail, limit)}")
        print()
    if config.output is not None:
        print(f"scores        {config.output}")
    for what, command in next_commands(result, config):
        print(f"To {what}:\n  {command}")


def check_lines(result: Result) -> list[str]:
    """Say if the run's own task gives what was recorded, and what can't be graded exactly."""
    lines, regraded = [], result.regraded
    if result.own_missing:
        lines.append(f"none, for the run's own task can't be had: {result.own_missing}")
    elif regraded.checked:
        lines.append(
            f"{regraded.same:,} of {regraded.checked:,} graded again by the run's own task have the recorded reward "
            "and outcome"
        )
    if (pair := regraded.first_other) is not None:
        lines.append(
            f"the first that differs: sample {pair.recorded.reply.sample_id} was {_outcome(pair.recorded.score)}, and "
            f"is now {_outcome(pair.score)}: the task has changed since, or does not always grade alike"
        )
    if other_numerics := provenance.other_numerics(result.run.info):
        lines.append(f"the run was {other_numerics}: graders of hone itself may have changed, too")
    if result.reads_state:
        lines.append(
            "reward functions read the state of a conversation, which is not recorded: they got the one it begins with"
        )
    return lines


def _outcome(score: Any) -> str:
    return str(score.outcome) if score.outcome.is_failure else f"{score.outcome} ({score.reward:.6g})"


def format_table(windows: list[Window], same_grader: bool) -> str:
    """Format the windows, a line each; with one grader without the columns that compare two."""
    rows = [["steps", "recorded", "regraded", "right: both", "only old", "only new", "truncated", "tokens"]]
    for one in windows:
        shares = (f"{share:.0%}" for share in (one.right_both, one.right_old, one.right_new, one.truncated))
        rows.append([one.name, f"{one.recorded:.3f}", f"{one.regraded:.3f}", *shares, f"{one.length:.1f}"])
    if same_grader:
        rows = [[*row[:4], *row[6:]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def choose_disagreements(result: Result) -> list[Pair]:
    """Choose completions to look at: of usual length, one of an example, those of the last window first."""
    after, pairs = result.verdict.after, result.regraded.disagreements
    late = [pair for pair in pairs if after.first <= pair.recorded.step <= after.last]
    earlier = [pair for pair in pairs if not after.first <= pair.recorded.step <= after.last]
    ordered = [*sort_by_typical_length(late), *sort_by_typical_length(earlier)]
    by_example = {pair.recorded.example.id: pair for pair in reversed(ordered)}
    return [pair for pair in ordered if by_example[pair.recorded.example.id] is pair][:SHOWN]


def next_commands(result: Result, config: RegradeConfig) -> list[tuple[str, str]]:
    """Return what makes sense now, as (what for, command to paste)."""
    task, path, other = result.task, result.run.path, config.env
    if result.same_grader:
        return [("ask another grader", f"hone regrade {shlex.quote(str(path))} --env ID")]
    if result.verdict.cause != "parser":
        return []
    audit = ["hone", "audit", task.id, *(["-a", json.dumps(task.args)] if task.args else [])]
    audit += ["--env-template", json.dumps(task.template)] if task.template else []
    commands = [("see what else the recorded grader loses", shlex.join(audit))]
    if other.id is not None and (task.args.keys() - other.args.keys() or task.template or other.template):
        # flags would keep what the run's config says of its own task
        text = tomli_w.dumps({"orchestrator": {"env": {"id": other.id, "args": other.args}}}).strip()
        what = f"train with the other one, put this in place of the task in a copy of {path}/config.toml"
        return [*commands, (what, text.replace("\n\n", "\n").replace("\n", "\n  "))]
    words = ["hone", "rl", "@", f"{path}/config.toml", "--output-dir", f"{path}-regraded"]
    words += ["--orchestrator.env.id", other.id] if other.id is not None else []
    words += ["--orchestrator.env.args", json.dumps(other.args)] if other.args else []
    return [*commands, ("train with the other one", shlex.join(words))]
