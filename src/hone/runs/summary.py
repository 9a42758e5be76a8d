"""Summary of a run from its files: progress, latest numbers, next commands. Commands and pages share it."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hone.config.dump import non_defaults
from hone.config.hoist import task_label
from hone.config.shared import DEFAULT_PRECISION, StopConfig
from hone.errors import UserError
from hone.extension import gathered
from hone.runs import provenance
from hone.runs.budget import Spent, spent
from hone.runs.files import MARKER, RESTORE, parse_time, read_json, sha256
from hone.runs.listing import find_run
from hone.runs.metrics import best_step
from hone.runs.opening import target_in_words
from hone.runs.outputs import holder
from hone.runs.progress import Progress
from hone.runs.provenance import larger_budget, resume_command
from hone.runs.rollback import interrupted
from hone.runs.settings import about, config_class, flat, read_config
from hone.runs.view import AUDIT, CERTIFICATE, CHECKPOINTS, CONFIG, HASHES, INFO, METRICS, OVER, WEIGHTS, RunView

KILLED = "killed"
"""Status of a run that did not record its end: its process is gone."""
_NEEDED = ("command", "hardware", "seed", "status", "threads", "versions")
_NEEDED_OF_TRAINING = ("exact", "inexact", "resumes", "started")
"""Keys of run.json that a summary needs, and further keys of a training run."""
_ENDED = {
    "done": "done, {}",
    "stopped": "stopped by {by} after {}, and saved",
    "budget": "its budget is used up after {}, and it is saved",
    "failed": "failed after {}",
    "interrupted": "interrupted after {}",
    KILLED: "killed after {}",
}


@dataclass(frozen=True)
class Summary:
    """The facts about a run. `config` is {} without a config.toml; `pid` is what `hone.runs.outputs.holder` returns."""

    files: RunView
    info: dict[str, Any]
    config: dict[str, Any]
    status: str
    pid: int | None
    progress: Progress
    spent: Spent
    damage: list[str] = field(default_factory=list)
    """Sentences about lost or unreadable parts of the run; the rest can be shown."""

    @property
    def path(self) -> Path:
        return self.files.path

    @property
    def seconds(self) -> float:
        return self.spent.seconds

    @property
    def kind(self) -> str:
        return self.info["kind"]

    @property
    def env(self) -> dict[str, Any]:
        """The settings `id`, `args` and `template` of the environment; empty if there is none."""
        if self.kind == "eval":
            names = {"id": "env", "args": "env_args", "template": "template"}
            return {name: self.config[key] for name, key in names.items() if key in self.config}
        return self.config.get({"rl": "orchestrator", "sft": "data"}.get(self.kind, ""), {}).get("env", {})

    @property
    def task(self) -> str | None:
        return task_label(self.env["id"], self.env.get("args") or {}) if "id" in self.env else None

    @cached_property
    def alarms(self) -> list[Raised]:
        return [alarm for alarm in alarms_in(self.files.events()) if alarm.over is None]

    @property
    def left(self) -> float | None:
        """Estimated seconds to the run's end; None if it isn't running, or has taken no step."""
        return self.progress.left if self.status == "running" else None

    @property
    def settings(self) -> dict[str, Any]:
        return flat(self.config)

    @property
    def tags(self) -> list[str]:
        return [str(tag) for tag in self.settings.get("wandb.tags") or ()]


def summarize(path: Path, ours: bool = False) -> Summary:
    """Return the summary of the run in `path`. Raises UserError if it isn't a run, or if one of its files is damaged.

    `ours` is true if this process holds the run's lock. `holder` is then not called, because it would release the lock.
    """
    run, pid = RunView(path), os.getpid() if ours else holder(path)
    info = run.info  # after the lock was looked at: a run writes its last status before it lets go of it
    for name in _NEEDED + (() if info["kind"] == "eval" else _NEEDED_OF_TRAINING):
        if name not in info:
            raise UserError(f"{path / INFO} is damaged ({name} is missing): {RESTORE}")
    config, damage = read_config(path, info["kind"])
    if info["kind"] == "eval":
        progress = Progress("eval", 0)
        progress.evals, seconds = run.evaluation()
        taken = Spent(sum(value or 0.0 for value in seconds.values()))
    else:
        timings = {record["step"]: record for record in run.timing_lines()}
        env = config.get("orchestrator", {}).get("env", {})
        task = task_label(env.get("id", ""), env.get("args") or {})
        progress, taken = Progress(info["kind"], config.get("max_steps", 0), task=task), spent(path, info)
        for record in run.metric_lines():
            progress.update(record["step"], record, timings.get(record["step"], {}))
    return Summary(run, info, config, status_of(info, pid), pid, progress, taken, damage)


def status_of(info: dict[str, Any], pid: int | None) -> str:
    """Return the status in run.json. If it says that the run goes on, but `pid` is None, return `killed`."""
    return KILLED if info["status"] in ("running", "paused", "copying") and pid is None else info["status"]


def status_text(run: Summary) -> str:
    """Return a text such as `outputs/rl: killed after 4 of 6 steps`. Paths like `.` and `..` are resolved."""
    path = run.path.resolve() if run.path.name in ("", "..") else run.path
    steps = f"{run.progress.done} of {run.progress.max_steps or '?'} steps"
    if run.status in ("running", "paused"):
        where = f"process {run.pid}" if run.pid else "a process of another machine, container or user"
        at = f"{run.progress.current + 1} of {run.progress.max_steps or '?'}"
        doing = "running" if run.status == "running" else "paused by an alarm before"
        return f"{path}: {doing} step {at}, in {where}"
    if run.kind == "eval":
        return f"{path}: {run.status}"
    by = f"the alarm {alarm}" if (alarm := run.info.get("stopped_by")) else "a signal"
    target = f", for {target_in_words(run.info)}" if run.status == "done" and "target" in run.info else ""
    return f"{path}: " + _ENDED.get(run.status, "{status}, {}").format(steps, by=by, status=run.status) + target


def next_commands(run: Summary) -> list[tuple[str, str]]:
    """Return commands to run next, as (purpose, command to paste)."""
    quoted = shlex.quote(str(run.path))
    end = ("end it", f"hone runs stop {quoted}")
    if run.status == "paused":
        return [("let it go on", f"hone runs continue {quoted}"), end]
    if run.status == "running":
        return [("watch it", f"hone runs attach {quoted}"), end]
    if run.kind == "eval":
        return []
    if interrupted(run.path):
        return [("finish the resume that was interrupted", _resuming(run))]
    if run.status == "done":
        again = [("check that it can be repeated", f"hone verify {quoted} --steps 3")]
        again = again if "verify" in gathered("COMMANDS", {}) else []
        if weights := run.files.weights():
            return [("evaluate it", evaluating(run, weights[max(weights)])), *again]
        return again
    steps = run.files.checkpoint_steps()
    return [(f"go on from step {steps[-1]}" if steps else "start it again from step 0", _resuming(run))]


def print_next(run: Summary) -> None:
    for what, command in next_commands(run):
        print(f"To {what}:\n  {command}")


def refuse_interrupted(path: Path) -> None:
    """Raise UserError if a resume was killed while it rolled the run back, so that its files are inconsistent."""
    if interrupted(path):
        command = _resuming(summarize(path))
        raise UserError(f"{path} was left in the middle of an interrupted resume: finish it with {command}")


def _resuming(run: Summary) -> str:
    """Return the command to continue the run with its config.toml. A used-up budget is doubled."""
    if not run.config:  # it ended before it had one
        return typed(run.info["command"])
    words = ["--detach"] if "--detach" in run.info["command"] else []
    if Path(run.config.get("output_dir", "outputs")).resolve() != run.path.resolve():
        words += ["--output-dir", str(run.path)]
    if run.status == "budget":
        words += larger_budget(run.config.get("budget", {}), run.spent)
    return resume_command(run.path, run.info, *words)


def typed(command: list[str], ranks: int = 1) -> str:
    """Return a recorded command as typed, without the program's folder. SFT on several ranks starts with torchrun."""
    if not command:
        return ""
    program = Path(command[0]).name
    words = ["hone" if program == "cli.py" else program]  # python -m hone.cli
    if program == "sft.py":
        words = ["torchrun", "--nproc-per-node", str(ranks), "-m", "hone.trainer.sft"]
    return shlex.join([*words, *command[1:]])


def evaluating(run: Summary, weights: Path) -> str:
    """Return the command to evaluate weights on the run's task; for SFT on samples of a run, on that run's task."""
    of = run
    if run.kind == "sft" and (sampled := run.config.get("data", {}).get("run")):
        with suppress(UserError):  # it may be gone
            of = summarize(find_run(sampled))
    given = [(flag, of.env[name]) for flag, name in (("-a", "args"), ("--template", "template")) if of.env.get(name)]
    task = [of.env.get("id", "ENV")]
    several = len(of.config.get("orchestrator", {}).get("envs", [])) > 1
    in_place = os.path.normpath(of.config.get("output_dir", "")) == str(of.path)
    if of.kind == "rl":
        from hone.config.eval import EvalConfig, sampling_of_run

        names = {"max_tokens": "-t", "temperature": "-T", "top_p": "--top-p", "seed": "--seed", "sampling_args": "-S"}
        found, defaults = sampling_of_run(of.config), EvalConfig.model_fields
        given += [(names[key], value) for key, value in found.items() if value != defaults[key].default]
    if given and of.kind != "eval" and in_place and not several:
        task, given = ["@", str(of.path / CONFIG)], []
    command = ["hone", "eval", *task, "-m", str(weights), "-n", "100", "-r", "4"]
    for flag, tree in given:
        command += [flag, json.dumps(tree)]
    if run.kind == "rl" and (template := run.config.get("model", {}).get("chat_template")):
        command += ["--chat-template", template]
    if run.kind == "rl" and run.config.get("model", {}).get("special_tokens"):
        command += ["--special-tokens"]
    precision = run.config.get("precision", "bf16_linear")
    if {precision, DEFAULT_PRECISION} != {"bf16_linear"}:  # said in all that may differ on another machine
        command += ["--precision", precision]
    return shlex.join(command)


def numbers(run: Summary) -> list[str]:
    progress = run.progress
    lines = [f"step {progress.done}: {', '.join(progress.summary())}"] if progress.history else []
    return lines + [f"held out, at step {progress.eval_step}: {line}" for line in progress.evaluation()]


def latest(run: Summary) -> str:
    """Return the headline of the last step, such as `reward 0.912` or `loss 0.8435`; "" before the first step."""
    if not run.progress.history:
        return ""
    value = run.progress.history[-1]
    return f"loss {value:.4f}" if run.kind == "sft" else f"reward {value:.3f}"


def held_out(run: Summary) -> str:
    """Return the headline of the last evaluation, such as `reward 0.940` or `loss 0.9012`; "" without one."""
    evals = run.progress.evals
    if (loss := evals.get("val/loss")) is not None:
        return f"loss {loss:.4f}"
    rewards = [value for name, value in evals.items() if name.endswith("/reward/mean") and name.count("/") <= 3]
    return f"reward {rewards[0]:.3f}" if rewards and rewards[0] is not None else ""


def environments(names: Sequence[str]) -> list[str]:
    """Return the tasks that a run was evaluated on: `t` for each name `eval/t/reward/mean`."""
    return [match[1] for name in names if (match := re.fullmatch("eval/([^/]+)/reward/mean", name))]


def pool_in_words(metrics: Mapping[str, float | None]) -> str:
    if "pool/active" not in metrics:
        return ""
    active, retired, parked = (int(metrics.get(f"pool/{name}") or 0) for name in ("active", "retired", "parked"))
    return f"{active:,} prompts active, {retired:,} retired (solved), {parked:,} parked (not solved yet)"


def local_time(stamp: str | None) -> str:
    return f"{time:%Y-%m-%d %H:%M}" if (time := parse_time(stamp)) else ""


def describe_event(event: dict[str, Any]) -> str:
    more = {name: value for name, value in event.items() if name not in ("kind", "step", "time")}
    at = f" at step {event['step']}" if event.get("step") is not None else ""
    text = f"{local_time(event.get('time'))}  {str(event.get('kind')).replace('_', ' ')}{at}"
    details = ", ".join(f"{name} {shortened(value)}" for name, value in more.items())
    return f"{text} ({details})" if details else text


def shortened(value: Any) -> str:
    """Return a value as one line of at most 60 characters, without control characters; cut after a word if possible."""
    text = str(value).lower() if isinstance(value, bool) else "".join(c if c.isprintable() else " " for c in str(value))
    return text if len(text) <= 60 else f"{text[: max(text.rfind(' ', 30, 58), 0) or 57]}..."


def best_checkpoint(run: Summary) -> str:
    metric = run.config.get("ckpt", {}).get("best")
    lines = run.files.metric_lines() if metric else []
    found = best_step(metric, lines, run.files.checkpoint_steps()) if metric else None
    return f"step_{found[0]}, whose {metric} was {found[1]:.4g}" if found else ""


def missed_target(run: Summary) -> str:
    if not (stop := run.config.get("stop")) or run.info.get("target"):
        return ""
    metric, stop = stop["metric"], StopConfig.model_validate(stop)
    values = [line[metric] for line in run.files.metric_lines() if line.get(metric) is not None]
    return f"{metric} was {f'{values[-1]:.4g} last' if values else 'never measured'} (target {stop.target})"


@dataclass(frozen=True)
class Raised:
    """An alarm that was raised. `over` is the step at which it ended, or None."""

    name: str
    since: int
    over: int | None
    evidence: str
    advice: str

    def __str__(self) -> str:
        span = f"since step {self.since}; then" if self.over is None else f"from step {self.since} to {self.over}"
        return f"{self.name} {span}: {self.evidence}"


def alarms_in(events: Iterable[Mapping[str, Any]]) -> list[Raised]:
    raised: list[Raised] = []
    for event in events:
        kind, name, step = event.get("kind"), str(event.get("name")), event.get("step") or 0
        if kind == "alarm":
            raised.append(Raised(name, step, None, str(event.get("evidence")), str(event.get("advice"))))
        if kind == OVER:
            raised = [replace(one, over=step) if one.over is None and one.name == name else one for one in raised]
    return raised


def exactness(info: Mapping[str, Any]) -> str:
    if info["exact"]:
        return "yes, by its settings: the same config and seed give the same bytes on this machine"
    return "no: " + "; ".join(f"from step {entry['step']} on, {entry['cause']}" for entry in info["inexact"])


def settings_in_words(one: Summary) -> list[str]:
    found = {} if one.kind == "eval" else non_defaults(config_class(one.kind), one.config)
    return [f"{name}={shortened(value)}" for name, value in found.items() if about(name).listed]


def machine_in_words(info: Mapping[str, Any]) -> str:
    hardware, threads = info["hardware"], info["threads"]
    gpu = ", ".join(hardware["gpu"]) if hardware.get("gpu") else "no GPU"
    used = f"{threads} thread{'s' if threads != 1 else ''}"
    ranks = provenance.ranks_of(info)
    used = f"{ranks} ranks, {used} each" if ranks > 1 else used
    cpu, cores, memory = (hardware.get(name, "?") for name in ("cpu", "cores", "memory_gib"))
    return f"{cpu}, {cores} cores, {memory} GiB, {gpu}; {used}"


def code_in_words(info: Mapping[str, Any]) -> str:
    git, versions = info.get("git"), info["versions"]
    revision = f"; revision {git['revision'][:12]}{' with changes' if git['dirty'] else ''}" if git else ""
    known = (f"{name} {versions[name]}" for name in ("hone-rl", "torch", "python") if versions.get(name))
    return ", ".join([*known, f"numerics {provenance.numerics(info)}"]) + revision


def audit_in_words(path: Path) -> str:
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


def regraded_in_words(info: Mapping[str, Any]) -> list[str]:
    record = info.get("regraded", {})
    count, differing = record.get("completions", 0), record.get("differing", 0)
    lines = [f"{count:,} completions: all equal" if not differing else f"{differing:,} of {count:,} differ"]
    left_out = record.get("left_out", "")
    return [*(lines if count else []), *([f"not checked: {left_out}"] if left_out else [])]


def certificate_path(run: Path) -> Path:
    """Return the path of the certificate of the run in directory `run`. It lies beside this directory."""
    folder = run.resolve()
    return folder.with_name(folder.name + CERTIFICATE)


def pinned(run: Path) -> dict[str, str]:
    """Return the SHA-256 of a run's main files, which contain the hashes of all other verified files."""
    markers = [path for kind in (WEIGHTS, CHECKPOINTS) for path in sorted(run.glob(f"{kind}/step_*/{MARKER}"))]
    files = [run / name for name in (INFO, CONFIG, HASHES, METRICS)] + markers
    return {file.relative_to(run).as_posix(): sha256(file) for file in files if file.is_file()}


def certificate_in_words(path: Path) -> str:
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
