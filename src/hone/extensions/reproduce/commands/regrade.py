"""`hone regrade RUN`: grade the recorded completions with another grader, to explain a change of reward.

hone regrade outputs --env my-task
hone regrade outputs --env.args.reads 20
"""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from hone import trust
from hone.commands.status import Status, command, print_json, print_labelled, print_table
from hone.config.base import changed
from hone.config.hoist import FUNCTIONS
from hone.config.tasks import TaskConfig
from hone.environments import services
from hone.environments.environment import NOT_REGRADED
from hone.environments.loading import configured, load_environment
from hone.environments.template import Template
from hone.errors import UserError
from hone.extensions.reproduce.attribution import Verdict, Window, choose_ends, judge, window, windows
from hone.extensions.reproduce.config import RegradeConfig
from hone.extensions.reproduce.regrade import Grader, Regraded, regrade, sort_by_typical_length
from hone.pages import visible
from hone.runs import Run, provenance
from hone.runs.files import write_file
from hone.runs.listing import find_run
from hone.runs.outputs import check_target, holder
from hone.runs.summary import refuse_interrupted, status_of

SHOWN = 3
"""Number of disagreements of the graders to show."""
LONGEST = 400
"""Maximum characters to show of a text."""


def run(config: RegradeConfig) -> int:
    json_file = config.as_json.file if config.as_json else None
    for flag, path in (("--output", config.output), ("--json", json_file)):
        if path is not None:
            check_target(path, flag)
    quiet = config.as_json is not None and json_file is None
    with redirect_stdout(sys.stderr) if quiet else nullcontext():  # what a task prints is no JSON
        result = regrade_run(config)
    if config.output is not None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        sink = pa.BufferOutputStream()
        pq.write_table(pa.concat_tables(result.regraded.scores), sink, compression="zstd")
        write_file(config.output, sink.getvalue().to_pybytes())
    text = json.dumps(result.record(), indent=2, ensure_ascii=False)
    if quiet:
        print_json(text)
        return 0
    if json_file is not None:
        write_file(json_file, text + "\n")
    result.print_report()
    if config.output is not None:
        print_labelled("scores", str(config.output))
    return 0


@dataclass(frozen=True)
class Graders:
    """`new` grades again. `original` is the run's task, or None if it can't be loaded (`missing` says why)."""

    task: TaskConfig
    original: Grader | None
    missing: str
    new: Grader
    graded_by: str
    name: str = ""
    """Name of the task, if the run has several."""

    @property
    def same(self) -> bool:
        return self.new is self.original


@dataclass(frozen=True)
class Regrading:
    run: Run
    steps: list[int]
    graders: Graders
    regraded: Regraded
    windows: list[Window]
    verdict: Verdict

    def record(self) -> dict[str, Any]:
        regraded, info = self.regraded, self.run.info
        return {
            "run": str(self.run.path),
            "id": info["id"],
            "numerics": {"recorded": provenance.numerics(info), "now": provenance.NUMERICS},
            "recorded_by": describe(self.graders.task.id, self.graders.task.args),
            "graded_by": self.graders.graded_by,
            "steps": self.steps,
            "completions": len(regraded.points),
            "failed": {"recorded": regraded.failed_old, "now": regraded.failed_new},
            "check": {
                "completions": regraded.checked,
                "same": regraded.same,
                "impossible": self.graders.missing or None,
            },
            "windows": [asdict(one) for one in self.windows],
            "verdict": self.verdict.record(),
            "disagreements": regraded.disagreeing,
        }

    def print_report(self) -> None:
        run, regraded, steps, graders = self.run, self.regraded, self.steps, self.graders
        extent = f"{len(regraded.points):,} of {len(steps):,} steps, {steps[0]} to {steps[-1]}"
        if regraded.failed_old or regraded.failed_new:
            extent += f"; left out: {regraded.failed_old:,} failed when recorded, {regraded.failed_new:,} now"
            extent += f" ({regraded.failure})" if regraded.failed_new else ""
        print_labelled("run", f"{run.path}: {status_of(run.info, holder(run.path))}, {run.info['id']}")
        print_labelled("recorded by", describe(graders.task.id, graders.task.args))
        print_labelled("graded by", "the same task" if graders.same else graders.graded_by)
        print_labelled("completions", extent)
        print_labelled("check", *self._check_lines())
        print()
        print_table([_row(one) for one in self.windows])
        print()
        print_labelled("verdict", self.verdict.sentence)
        late = [pair for pair in regraded.disagreements if pair.recorded.step >= self.verdict.after.first]
        for pair in sort_by_typical_length(late or regraded.disagreements)[: 0 if graders.same else SHOWN]:
            recorded = pair.recorded
            print(f"\nstep {recorded.step}, sample {recorded.reply.sample_id}, {recorded.length} tokens:")
            for text in visible(recorded.text, LONGEST).splitlines() or [""]:
                print(f"  | {text}")
            for label, score in (("recorded:", recorded.score), ("now:", pair.score)):
                print(f"  {label:<9} {_outcome(score)}, {visible(score.detail, LONGEST)}")
        if graders.same and not graders.name:
            print(f"\nTo ask another grader:\n  hone regrade {shlex.quote(str(run.path))} --env ID")
        elif self.verdict.cause == "parser":
            audit = command("hone", "audit", graders.task.id, a=graders.task.args, env_template=graders.task.template)
            print(f"\nTo see what else the recorded grader rejects:\n  {audit}")

    def _check_lines(self) -> list[str]:
        lines, regraded = [], self.regraded
        if self.graders.missing:
            lines.append(f"none: the run's own task can't be loaded: {self.graders.missing}")
        elif regraded.checked:
            lines.append(f"{regraded.same:,} of {regraded.checked:,} have the recorded reward and outcome")
        if (pair := regraded.first_other) is not None:
            old, new = _outcome(pair.recorded.score), _outcome(pair.score)
            where = f"the first that differs: sample {pair.recorded.reply.sample_id} was {old}, and is now {new}"
            lines.append(f"{where}: the task has changed, or its scores are random")
        if other_numerics := provenance.other_numerics(self.run.info):
            lines.append(f"the run was {other_numerics}: graders of hone itself may have changed, too")
        if self.graders.new.reads_state:
            lines.append("the state of a conversation is not recorded: reward functions got the initial state")
        return lines


def regrade_run(config: RegradeConfig) -> Regrading:
    """Grade the run's completions again. Raises UserError without completions, or without a grader."""
    run = Run(find_run(config.run))
    refuse_interrupted(run.path)
    if (kind := run.info["kind"]) != "rl":
        raise UserError(f"{run.path} is a run of `hone {kind}`, which records no rollouts: name a run of `hone rl`")
    if not (known := run.rollout_steps()):
        raise UserError(f"{run.path} has no rollouts yet: there is nothing to grade")
    steps = steps_within(config.steps, known, "--steps")
    graders = load_graders(run, config)
    services.record_in(run.path, "read")
    regraded = _grade(run, steps, graders, config)
    parts = windows(regraded.points)
    if not parts:
        stateful = graders.new.reads_state
        raise UserError(
            f"no completion of {run.path} was graded both times: {regraded.failed_old:,} failed when they were "
            f"recorded, {regraded.failed_new:,} now ({regraded.failure or 'no failure now'})"
            + ("; the functions read the conversation's state, and no run records that state" if stateful else "")
        )
    ends = choose_ends(parts)
    if config.from_ is not None:
        spans = (steps_within(config.from_, steps, "--from"), steps_within(config.to, steps, "--to"))
        before, after = (window(regraded.points, span[0], span[-1]) for span in spans)
        if before is None or after is None:
            raise UserError(
                "the steps of --from or of --to have no completion that both graders could grade: name other steps"
            )
        ends = before, after
    return Regrading(run, steps, graders, regraded, parts, judge(*ends, parts, same_grader=graders.same))


def load_graders(run: Run, config: RegradeConfig) -> Graders:
    """Load the run's own task, and the grader. Raises UserError if the grader can't be loaded."""
    orch, asked, name = run.config.get("orchestrator", {}), config.env, ""
    recorded, several = orch.get("env", {}), {env["name"]: env for env in orch.get("envs", [])}
    if len(several) > 1:
        if asked.id is None or asked.id not in several:
            raise UserError(f"{run.path} has several tasks: name one with --env {' or --env '.join(several)}")
        name, asked = asked.id, changed(asked, {"id": None})
        recorded = {key: value for key, value in several[name].items() if key in TaskConfig.model_fields}
    by_program = recorded.get("id") == FUNCTIONS and {"agent", "agent_command"} & recorded.get("args", {}).keys()
    if by_program and asked.id is None and not several and not orch.get("eval", {}).get("envs"):
        raise UserError(NOT_REGRADED)
    task, original, missing = TaskConfig.model_validate(recorded), None, ""
    its_code = partial(trust.opened_run, run.path, run.info, config.trust_local_task, config.reward)
    try:
        with its_code():
            original = Grader(configured(task.id, task.args, task.template, "orchestrator.env.template"))
    except UserError as error:
        missing = str(error)
    if asked.id is None and not asked.args and asked.template is None:
        if original is None:
            raise UserError(f"the run's own task can't be loaded ({missing}): fix it, or name a grader: --env ID")
        return Graders(task, original, missing, original, describe(task.id, task.args), name)
    if unknown := (asked.template or {}).keys() - {"answer", "info"}:
        raise UserError(
            f"env.template sets {sorted(unknown)[0]!r}, but may set only answer and info: the prompt is recorded"
        )
    env_id, args = (task.id, task.args | asked.args) if asked.id is None else (asked.id, asked.args)
    template = None if asked.template is None else Template(asked.template, "env.template")
    with its_code() if asked.id is None else nullcontext():  # the user trusts the grader that they name
        new = Grader(load_environment(env_id, **args), template)
    return Graders(task, original, missing, new, describe(env_id, args), name)


def _grade(run: Run, steps: list[int], graders: Graders, config: RegradeConfig) -> Regraded:
    loaded = [graders.new, *([] if graders.original is None or graders.same else [graders.original])]
    status = Status(sys.stderr)
    for one in loaded:
        one.env.use_workers(config.grading)
    try:
        return regrade(
            run,
            steps,
            graders.new,
            graders.original,
            seed=run.info["seed"],
            task=graders.name,
            max_failed=config.grading.max_failed,
            keep_scores=config.output is not None,
            progress=lambda done: status(f"regrading step {done} of {len(steps)}"),
        )
    finally:
        status.clear()
        for one in loaded:
            one.env.close_workers()


def describe(env_id: str, args: dict[str, Any]) -> str:
    """Return a task with its arguments, such as `gsm8k (mode two_part)`."""
    texts = (f"{name} {value if isinstance(value, str) else json.dumps(value)}" for name, value in args.items())
    return f"{env_id} ({', '.join(texts)})" if args else env_id


def steps_within(text: str | None, steps: list[int], flag: str) -> list[int]:
    """Return the steps within `A:B`. Raises UserError if there are none."""
    first, _, last = (text or ":").partition(":")
    inside = [step for step in steps if int(first or 0) <= step and (not last or step < int(last))]
    if not inside:
        raise UserError(f"{flag} {text} names no recorded step; the recorded steps are {steps[0]} to {steps[-1]}")
    return inside


def _outcome(score: Any) -> str:
    return str(score.outcome) if score.outcome.is_failure else f"{score.outcome} ({score.reward:.6g})"


def _row(one: Any) -> dict[str, str]:
    shares = {"right: both": one.right_both, "only old": one.right_old, "only new": one.right_new}
    row = {"steps": one.name, "recorded": f"{one.recorded:.3f}", "regraded": f"{one.regraded:.3f}"}
    row |= {name: f"{share:.0%}" for name, share in (shares | {"truncated": one.truncated}).items()}
    return row | {"tokens": f"{one.length:.1f}"}
