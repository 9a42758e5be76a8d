"""`hone regrade RUN`: grade the recorded completions with another grader, and see where the reward went.

hone regrade outputs --env my-task
hone regrade outputs --env.args.reads 20
"""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any

from hone.commands.status import Status
from hone.config.reproduce import RegradeConfig
from hone.config.shared import EnvConfig
from hone.environments.loading import configured, load_environment
from hone.environments.task_files import refuse_other_task
from hone.environments.template import Template
from hone.errors import UserError
from hone.pages import visible
from hone.reproduce.attribution import Verdict, Window, choose_ends, judge, window, windows
from hone.reproduce.regrade import Grader, Regraded, regrade, sort_by_typical_length
from hone.runs import Run, provenance
from hone.runs.files import write_file
from hone.runs.listing import find_run
from hone.runs.outputs import check_target, holder
from hone.runs.summary import refuse_interrupted, status_of

SHOWN = 3
"""Completions about which the graders disagree that are shown."""
LONGEST = 400
"""Most characters of one of them that are shown."""


@dataclass(frozen=True)
class Result:
    """All there is to report. `own` is the run's own task; None if it could not be loaded, for `own_missing`."""

    run: Run
    task: EnvConfig
    grader: Grader
    graded_by: str
    own: Grader | None
    own_missing: str
    steps: list[int]
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
    text = json.dumps(as_record(result), indent=2, ensure_ascii=False) + "\n"
    if quiet:
        sys.stdout.write(text)
        return 0
    if json_file is not None:
        write_file(json_file, text)
    print_report(result, config)
    return 0


def grade_again(config: RegradeConfig, recorded: Run, quiet: bool) -> Result:
    """Load the graders, grade the chosen steps and judge the change."""
    task, asked = EnvConfig.model_validate(recorded.config.get("orchestrator", {}).get("env", {})), config.env
    digest = recorded.info.get("sources", {}).get("environment")
    own, own_missing = None, ""
    try:
        refuse_other_task(task.id, task.args, digest, config.trust_local_task)
        own = Grader(configured(task.id, task.args, task.template, "orchestrator.env.template"))
    except UserError as error:
        own_missing = str(error)
    grader, graded_by = own, describe(task.id, task.args)
    if asked.id is not None or asked.args or asked.template is not None:
        if asked.id is None:
            refuse_other_task(task.id, task.args, digest, config.trust_local_task)
        env_id, args = (task.id, task.args | asked.args) if asked.id is None else (asked.id, asked.args)
        template = None if asked.template is None else Template(asked.template, "env.template")
        if unknown := (asked.template or {}).keys() - {"answer", "info"}:
            raise UserError(
                f"env.template makes {sorted(unknown)[0]!r}, but what is graded again has its prompt: it may make "
                "answer and info"
            )
        grader, graded_by = Grader(load_environment(env_id, **args), template), describe(env_id, args)
    if grader is None:
        raise UserError(f"the run's own task can't be had ({own_missing}): name one that grades with --env ID")
    if not (known := recorded.rollout_steps()):
        raise UserError(f"{recorded.path} has no rollouts yet: there is nothing to grade")
    steps = steps_within(config.steps, known, "--steps")[:: config.every]
    graders = [grader] if own is None or own is grader else [grader, own]
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
    ends = choose_ends(cut)
    if config.from_ is not None:
        spans = [steps_within(config.from_, steps, "--from"), steps_within(config.to, steps, "--to")]
        before, after = (window(regraded.points, span[0], span[-1]) for span in spans)
        if before is None or after is None:
            raise UserError("--from or --to holds no completion that both graders could grade: name other steps")
        ends = before, after
    verdict = judge(*ends, cut, same_grader=grader is own)
    return Result(recorded, task, grader, graded_by, own, own_missing, steps, regraded, cut, verdict)


def describe(env_id: str, args: dict[str, Any]) -> str:
    """Format `gsm8k (mode two_part)`."""
    texts = (f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in args.items())
    return f"{env_id} ({', '.join(texts)})" if args else env_id


def steps_within(text: str | None, steps: list[int], flag: str) -> list[int]:
    """Return those of the steps that `A:B` means. Raises UserError if it is none of them."""
    first, _, last = (text or ":").partition(":")
    inside = [step for step in steps if int(first or 0) <= step and (not last or step < int(last))]
    if not inside:
        raise UserError(f"{flag} {text} holds none of the recorded steps {steps[0]} to {steps[-1]}")
    return inside


def as_record(result: Result) -> dict[str, Any]:
    """Return the result as JSON-ready values."""
    regraded, info = result.regraded, result.run.info
    check = {"completions": regraded.checked, "same": regraded.same, "impossible": result.own_missing or None}
    return {
        "run": str(result.run.path),
        "id": info["id"],
        "numerics": {"recorded": provenance.numerics(info), "now": provenance.NUMERICS},
        "recorded_by": describe(result.task.id, result.task.args),
        "graded_by": result.graded_by,
        "steps": result.steps,
        "completions": len(regraded.points),
        "failed": {"recorded": regraded.failed_old, "now": regraded.failed_new},
        "check": check,
        "windows": [asdict(one) for one in result.windows],
        "verdict": result.verdict.record(),
        "disagreements": regraded.disagreeing,
    }


def print_report(result: Result, config: RegradeConfig) -> None:
    """Print what was graded, the windows, the verdict, and completions about which the graders disagree."""
    one, task, regraded, steps = result.run, result.task, result.regraded, result.steps
    same_grader = result.grader is result.own
    extent = f"{len(regraded.points):,} of {len(steps):,} steps, {steps[0]} to {steps[-1]}"
    if regraded.failed_old or regraded.failed_new:
        extent += f"; without {regraded.failed_old:,} that could not be graded then and {regraded.failed_new:,} now"
        extent += f" ({regraded.failure})" if regraded.failed_new else ""
    lines = [
        ("run", f"{one.path}: {status_of(one.info, holder(one.path))}, {one.info['id']}"),
        ("recorded by", describe(task.id, task.args)),
        ("graded by", "the same task" if same_grader else result.graded_by),
        ("completions", extent),
        *(("check", text) for text in check_lines(result)),
    ]
    for label, text in lines:
        print(f"{label:<14}{text}")
    print(f"\n{format_table(result.windows)}\n\nverdict       {result.verdict.sentence}")
    if not same_grader:
        late = [pair for pair in regraded.disagreements if pair.recorded.step >= result.verdict.after.first]
        for pair in sort_by_typical_length(late or regraded.disagreements)[:SHOWN]:
            recorded = pair.recorded
            print(f"\nstep {recorded.step}, sample {recorded.reply.sample_id}, {recorded.length} tokens:")
            for text in visible(recorded.text, LONGEST).splitlines() or [""]:
                print(f"  | {text}")
            for label, score in (("recorded:", recorded.score), ("now:", pair.score)):
                print(f"  {label:<9} {_outcome(score)}, {visible(score.detail, LONGEST)}")
        print()
    if config.output is not None:
        print(f"scores        {config.output}")
    if same_grader:
        print(f"To ask another grader:\n  hone regrade {shlex.quote(str(one.path))} --env ID")
    elif result.verdict.cause == "parser":
        audit = ["hone", "audit", task.id, *(["-a", json.dumps(task.args)] if task.args else [])]
        audit += ["--env-template", json.dumps(task.template)] if task.template else []
        print(f"To see what else the recorded grader loses:\n  {shlex.join(audit)}")


def check_lines(result: Result) -> list[str]:
    """Say if the run's own task gives what was recorded, and what can't be graded exactly."""
    lines, regraded = [], result.regraded
    if result.own_missing:
        lines.append(f"none, for the run's own task can't be had: {result.own_missing}")
    elif regraded.checked:
        graded = f"{regraded.same:,} of {regraded.checked:,} graded again by the run's own task"
        lines.append(f"{graded} have the recorded reward and outcome")
    if (pair := regraded.first_other) is not None:
        lines.append(
            f"the first that differs: sample {pair.recorded.reply.sample_id} was {_outcome(pair.recorded.score)}, and "
            f"is now {_outcome(pair.score)}: the task has changed since, or does not always grade alike"
        )
    if other_numerics := provenance.other_numerics(result.run.info):
        lines.append(f"the run was {other_numerics}: graders of hone itself may have changed, too")
    if result.grader.reads_state:
        lines.append(
            "reward functions read the state of a conversation, which is not recorded: they got the one it begins with"
        )
    return lines


def _outcome(score: Any) -> str:
    return str(score.outcome) if score.outcome.is_failure else f"{score.outcome} ({score.reward:.6g})"


def format_table(windows: list[Window]) -> str:
    """Format the windows, a line each."""
    rows = [["steps", "recorded", "regraded", "right: both", "only old", "only new", "truncated", "tokens"]]
    for one in windows:
        shares = (f"{share:.0%}" for share in (one.right_both, one.right_old, one.right_new, one.truncated))
        rows.append([one.name, f"{one.recorded:.3f}", f"{one.regraded:.3f}", *shares, f"{one.length:.1f}"])
    first, *others = zip(*rows, strict=True)
    columns = [[cell.ljust(max(map(len, first))) for cell in first]]
    columns += [[cell.rjust(max(map(len, column))) for cell in column] for column in others]
    return "\n".join("  ".join(cells) for cells in zip(*columns, strict=True))
