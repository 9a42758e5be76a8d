"""How a run stands and what to do next, in the words that commands and pages share."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.errors import UserError
from hone.runs.reader import Run
from hone.runs.resuming import larger_budget, ranks_of, resume_command
from hone.runs.rollback import interrupted
from hone.runs.summary import KILLED, Summary, summarize

_ENDED = {
    "done": "done, {}",
    "stopped": "stopped by {by} after {}, and saved",
    "budget": "its budget is used up after {}, and it is saved",
    "failed": "failed after {}",
    "interrupted": "interrupted after {}",
    KILLED: "killed after {}",
}


def standing(run: Summary) -> str:
    """`outputs/rl: killed after 4 of 6 steps`; a folder named by dots only is told by its name."""
    path = run.path.resolve() if run.path.name in ("", "..") else run.path
    if run.status in ("running", "paused"):
        where = f"process {run.pid}" if run.pid else "a process of another machine, container or user"
        at = f"{run.progress.current + 1} of {run.progress.max_steps or '?'}"
        doing = "at work on" if run.status == "running" else "paused by an alarm before"
        return f"{path}: {doing} step {at}, in {where}"
    if run.kind == "eval":
        return f"{path}: {run.status}"
    by = f"the alarm {alarm}" if (alarm := run.info.get("stopped_by")) else "a signal"
    return f"{path}: " + _ENDED.get(run.status, run.status + ", {}").format(f"{steps(run)} steps", by=by)


def steps(run: Summary) -> str:
    """`4 of 6`"""
    return f"{run.progress.done} of {run.progress.max_steps or '?'}"


def next_commands(run: Summary) -> list[tuple[str, str]]:
    """What makes sense now, as (what for, command to paste)."""
    quoted = shlex.quote(str(run.path))
    lost = [("see where the reward went", f"hone regrade {quoted}")] if has_fallen(run) else []
    return [*_next_commands(run, quoted), *lost]


def has_fallen(run: Summary) -> bool:
    """Whether the last tenth of an RL run was paid less than 60 % of what its best tenth was."""
    rewards = run.progress.history if run.kind == "rl" else []
    size = len(rewards) // 10
    if size < 2:
        return False
    means = [sum(rewards[end - size : end]) / size for end in range(len(rewards), size - 1, -size)]
    return means[0] < 0.6 * max(means)


def _next_commands(run: Summary, quoted: str) -> list[tuple[str, str]]:
    if run.status == "paused":
        return [("let it go on", f"hone runs continue {quoted}"), ("end it", f"hone runs stop {quoted}")]
    if run.status == "running":
        return [("watch it", f"hone runs attach {quoted}"), ("end it", f"hone runs stop {quoted}")]
    if run.kind == "eval":
        return []
    if interrupted(run.path):
        return [("finish the resume that was interrupted", _resuming(run))]
    if run.status == "done":
        weights = Run(run.path).weights()
        evaluate = (
            [("evaluate it", evaluation(run, str(weights[max(weights)]), ("-n", "100", "-r", "4")))] if weights else []
        )
        return [*evaluate, ("check that it can be repeated", f"hone verify {quoted} --steps 3")]
    return [(_going_on(run), _resuming(run))]


def refuse_interrupted(path: Path) -> None:
    """UserError if a resume of the run was killed in the middle of its roll-back: no part of it says what it is."""
    if interrupted(path):
        command = _resuming(summarize(path))
        raise UserError(f"{path} was left in the middle of an interrupted resume: finish it with {command}")


def print_next(run: Summary) -> None:
    """Prints what makes sense now, each command on a line of its own."""
    for what, command in next_commands(run):
        print(f"To {what}:\n  {command}")


def numbers(run: Summary) -> list[str]:
    """The latest step and the last evaluation, in a line each."""
    progress = run.progress
    lines = [f"step {progress.done}: {', '.join(progress.summary())}"] if progress.history else []
    return lines + [f"held out, at step {progress.eval_step}: {line}" for line in progress.evaluation()]


def _going_on(run: Summary) -> str:
    checkpoints = run.checkpoints
    if not checkpoints:
        return "start it again from step 0"
    return f"go on from step {checkpoints[-1]}"


def _resuming(run: Summary) -> str:
    """The command that goes on with the run, from its own config.toml; a budget that is used up is doubled."""
    if not run.config:  # it ended before it had one
        return typed(run.info["command"])
    words = ["--detach"] if "--detach" in run.info["command"] else []
    if Path(run.config.get("output_dir", "outputs")).resolve() != run.path.resolve():
        words += ["--output-dir", str(run.path)]
    if run.status == "budget":
        words += larger_budget(run.config.get("budget", {}), run.spent)
    return resume_command(run.path, run.kind, *words, ranks=ranks_of(run.info))


def typed(command: list[str]) -> str:
    """A recorded command as it was typed, without the folder of the program."""
    if not command:
        return ""
    program = Path(command[0]).name
    return shlex.join(["hone" if program == "cli.py" else program, *command[1:]])  # python -m hone.cli


def evaluation(run: Summary, weights: str, words: Sequence[str]) -> str:
    """The command that evaluates weights on the task of a run, set up as it is there; `words` are the flags of its size
    and sampling.
    """
    command = ["hone", "eval", run.task or "ENV", "-m", weights]
    if run.kind == "rl":
        env = run.config.get("orchestrator", {}).get("env", {})
        for flag, tree in (("-a", env.get("args")), ("--template", env.get("template"))):
            command += [flag, json.dumps(tree)] if tree else []
        if template := run.config.get("model", {}).get("chat_template"):
            command += ["--chat-template", template]
    if (precision := run.config.get("precision", "bf16_linear")) != "bf16_linear":
        command += ["--precision", precision]
    return shlex.join([*command, *words])


def latest(run: Summary) -> str:
    """The headline of the last step: `reward 0.912`, `loss 0.8435`; empty before the first."""
    if not run.progress.history:
        return ""
    value = run.progress.history[-1]
    return f"loss {value:.4f}" if run.kind == "sft" else f"reward {value:.3f}"


def held_out(run: Summary) -> str:
    """The last evaluation's headline: `reward 0.940`, `loss 0.9012`; empty without one."""
    evals = run.progress.evals
    if (loss := evals.get("val/loss")) is not None:
        return f"loss {loss:.4f}"
    rewards = [value for name, value in evals.items() if name.endswith("/reward/mean") and name.count("/") <= 3]
    return f"reward {rewards[0]:.3f}" if rewards and rewards[0] is not None else ""


def pool_in_words(metrics: Mapping[str, float | None]) -> str:
    """How many prompts a curriculum has in its pool and out of it, from `pool/…` of a step's metrics; else empty."""
    if "pool/active" not in metrics:
        return ""
    active, retired, parked = (int(metrics.get(f"pool/{name}") or 0) for name in ("active", "retired", "parked"))
    return f"{active:,} prompts active, {retired:,} retired (solved), {parked:,} parked (not solved yet)"
