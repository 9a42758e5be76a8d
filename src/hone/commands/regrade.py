"""`hone regrade RUN`: did the model change, or what was made of its answers?

hone regrade outputs                                        # with the run's own task: the recorded rewards again
hone regrade outputs --env.args.mode two_part               # with other arguments of it
hone regrade outputs --env gsm8k                            # with another task
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from hone.commands.regrade_report import Result, in_words, record, say
from hone.composition.slow_work import slow_work
from hone.config.reproduce import RegradeConfig
from hone.config.shared import EnvConfig
from hone.environments.loading import configured, load_environment
from hone.environments.task_files import refuse_other_task
from hone.environments.template import Template
from hone.errors import UserError
from hone.reproduce.attribution import Window, window, windows
from hone.reproduce.regrade import Grader, Regraded, regrade, spread
from hone.reproduce.verdict import ends, judge
from hone.runs import Run
from hone.runs.files import write_file
from hone.runs.listing import find_run
from hone.runs.outputs import check_target
from hone.runs.words import refuse_interrupted

if TYPE_CHECKING:
    import pyarrow


def run(config: RegradeConfig) -> int:
    """Grades again and reports; returns 0, whatever came out."""
    recorded = Run(find_run(config.run))
    refuse_interrupted(recorded.path)
    task = _task_of(recorded)
    for flag, path in (("--output", config.output), ("--json", _json_file(config))):
        if path is not None:
            check_target(path, flag)
    quiet = config.as_json is not None and config.as_json.file is None
    with redirect_stdout(sys.stderr) if quiet else nullcontext():  # what a task prints is no JSON
        result = _regrade(config, recorded, task, quiet)
    if config.output is not None:
        write_scores(config.output, result.found.scores)
    if config.as_json is not None:
        text = json.dumps(record(result), indent=2, ensure_ascii=False) + "\n"
        if config.as_json.file is None:
            sys.stdout.write(text)
            return 0
        write_file(config.as_json.file, text)
    say(result, config)
    return 0


def _json_file(config: RegradeConfig) -> Path | None:
    return config.as_json.file if config.as_json else None


def _task_of(recorded: Run) -> EnvConfig:
    """The task that the run's config names. UserError for a run without rollouts of a task."""
    kind = recorded.info["kind"]
    if kind != "rl":
        raise UserError(
            f"{recorded.path} is a run of `hone {kind}`, which records no rollouts: name a run of `hone rl`"
        )
    return EnvConfig.model_validate(recorded.config.get("orchestrator", {}).get("env", {}))


def _regrade(config: RegradeConfig, recorded: Run, task: EnvConfig, quiet: bool) -> Result:
    own, why = _own(config, recorded, task)
    grader, named = _grader(config, recorded, task, own, why)
    for one in (grader, own):
        if one is not None:
            one.env.use_workers(config.grading)
    every = _steps(config, recorded)
    steps = chosen(config, recorded, every)
    try:
        with slow_work("regrading step", len(steps), "none" if quiet else "auto") as progress:
            found = regrade(
                recorded,
                steps,
                grader,
                own,
                seed=recorded.info["seed"],
                check=config.check,
                max_failed=config.grading.max_failed,
                keep_scores=config.output is not None,
                progress=progress,
            )
    finally:
        for one in (grader, own):
            if one is not None:
                one.env.close_workers()
    cut = windows(found.columns)
    if not cut:
        raise UserError(
            f"no completion of {recorded.path} was graded both times: {found.failed_old:,} failed when they were "
            f"recorded, {found.failed_new:,} now ({found.failure or 'no failure now'})"
        )
    return Result(
        run=recorded,
        task=task,
        recorded_by=in_words(task.id, task.args),
        graded_by=named,
        same_grader=grader is own,
        own=why,
        steps=steps,
        all_steps=len(every),
        found=found,
        windows=cut,
        verdict=judge(*_ends(config, found, cut), cut, same_grader=grader is own),
        reads_state=grader.reads_state,
    )


def _own(config: RegradeConfig, recorded: Run, task: EnvConfig) -> tuple[Grader | None, str]:
    """The run's own task, or why it can't be had."""
    try:
        _refuse_other(config, recorded, task)
        return Grader(configured(task.id, task.args, task.template, "orchestrator.env.template")), ""
    except UserError as error:
        return None, str(error)


def _refuse_other(config: RegradeConfig, recorded: Run, task: EnvConfig) -> None:
    """Raise UserError if the run's config names a local file that is not the run's: nobody asked for that one."""
    refuse_other_task(task.id, task.args, recorded.info.get("sources", {}).get("environment"), config.trust_local_task)


def _grader(config: RegradeConfig, recorded: Run, task: EnvConfig, own: Grader | None, why: str) -> tuple[Grader, str]:
    """What grades, and its name on the screen."""
    asked = config.env
    if asked.id is None and not asked.args and asked.template is None:
        if own is None:
            raise UserError(f"the run's own task can't be had ({why}): name one that grades with --env ID")
        return own, in_words(task.id, task.args)
    env_id, args = (task.id, task.args | asked.args) if asked.id is None else (asked.id, asked.args)
    if asked.id is None:
        _refuse_other(config, recorded, task)
    template = None
    if asked.template is not None:
        if unknown := asked.template.keys() - {"answer", "info"}:
            raise UserError(
                f"env.template makes {sorted(unknown)[0]!r}, but what is graded again has its prompt: it may make "
                "answer and info"
            )
        template = Template(asked.template, "env.template")
    return Grader(load_environment(env_id, **args), template), in_words(env_id, args)


def span(text: str | None, steps: Sequence[int], flag: str) -> list[int]:
    """Those of the steps that `A:B` means. UserError if it is none of them."""
    first, _, last = (text or ":").partition(":")
    found = [step for step in steps if int(first or 0) <= step and (not last or step < int(last))]
    if not found:
        raise UserError(f"{flag} {text} holds none of the recorded steps {steps[0]} to {steps[-1]}")
    return found


def _steps(config: RegradeConfig, recorded: Run) -> list[int]:
    """The recorded steps that were asked for."""
    steps = recorded.rollout_steps()
    if not steps:
        raise UserError(f"{recorded.path} has no rollouts yet: there is nothing to grade")
    return span(config.steps, steps, "--steps")


def chosen(config: RegradeConfig, recorded: Run, steps: list[int]) -> list[int]:
    """Of the steps those that are graded: one in `every`, and no more than hold `max_rollouts` completions."""
    steps = steps[:: config.every]
    if config.max_rollouts is None:
        return steps
    largest = max(len(recorded.rollouts(step, ["step"])) for step in steps)
    return spread(steps, max(1, config.max_rollouts // largest))


def _ends(config: RegradeConfig, found: Regraded, cut: list[Window]) -> tuple[Window, Window]:
    """The windows between which the change is measured."""
    if config.from_ is None:
        return ends(cut)
    steps = sorted(set(found.columns.step.tolist()))
    made = []
    for flag, text in (("--from", config.from_), ("--to", config.to)):
        inside = span(text, steps, flag)
        if (one := window(found.columns, inside[0], inside[-1])) is None:
            raise UserError(f"{flag} {text} holds no completion that both graders could grade")
        made.append(one)
    return made[0], made[1]


def write_scores(path: Path, scores: list[pyarrow.Table]) -> None:
    """The new scores of all steps as one Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.concat_tables(scores), sink, compression="zstd")
    write_file(path, sink.getvalue().to_pybytes())
