"""The pieces of a recorded run put together again, so that its steps can be taken anew: config, model, task or data.

Threads, precision and deterministic kernels are set as the run recorded them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.composition.machine import configure, device_of
from hone.composition.parts import (
    load_policy,
    make_evaluate,
    make_trainer,
    model_digests,
    task_digests,
    task_of,
    with_determinism,
)
from hone.composition.sampling import own_policy
from hone.composition.sft import load_data
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments.task_files import refuse_other_task
from hone.errors import UserError
from hone.model.chat import ChatRenderer, load_renderer
from hone.model.decoder import Decoder
from hone.model.hf import load_model
from hone.orchestrator.canary import Canary
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.exactness import TOLERANCE
from hone.orchestrator.groups import GroupSampler
from hone.orchestrator.watch import band_of
from hone.reproduce import machine
from hone.reproduce.execution import Execution, Memory, RLExecution, SFTExecution
from hone.reproduce.records import Records
from hone.reproduce.tolerance import Tolerance
from hone.reproduce.versions import Versions
from hone.runs import Run, provenance
from hone.runs.listing import find_run
from hone.runs.liveness import holder
from hone.runs.ranks import most_ranks
from hone.runs.settings import moved
from hone.runs.words import refuse_interrupted
from hone.trainer.fingerprint import fingerprint
from hone.trainer.objectives import sft_objective
from hone.trainer.step import Trainer

if TYPE_CHECKING:
    import torch


@dataclass
class Rebuilt:
    """A recorded run that can be executed again.

    `sources` are digests of what it reads, as in run.json. `without` says why the initial model is not to be had, ""
    if it is: then versions before the first checkpoint can't be reached.
    """

    config: Any
    renderer: ChatRenderer
    versions: Versions
    sources: dict[str, str]
    without: str

    @property
    def machine(self) -> dict[str, Any]:
        """The facts about this process that run.json holds about the run's."""
        return this_machine() | {"sources": {"code": provenance.code()} | self.sources}


def this_machine() -> dict[str, Any]:
    """Numerics and versions of this hone, hardware, threads and variables of this process."""
    here = {"numerics": provenance.NUMERICS, "versions": provenance.versions(), "hardware": provenance.hardware()}
    return here | {"threads": provenance.threads(), "variables": provenance.variables()}


def open_run(name: str) -> Run:
    """The run of this directory or id. UserError if there is none, if a process is writing it, or if a resume of it was
    killed while it rolled the run back.
    """
    path = find_run(name)
    if holder(path) is not None:
        raise UserError(
            f"{path} is being written by a process: wait until it has ended (hone runs attach {shlex.quote(str(path))})"
        )
    refuse_interrupted(path)
    return Run(path)


def read_config(run: Run) -> RLConfig | SFTConfig:
    """The run's config, as it was resolved. UserError for a kind of run that has no steps, such as an evaluation."""
    config = parse(_config_class(run), ["@", str(run.path / "config.toml")], f"hone {run.info['kind']}")
    if not run.info.get("kept"):
        return config
    return type(config).model_validate(moved(config.model_dump(), config.output_dir, run.path))


def read_precision(run: Run) -> str:
    """Return the precision of the run's weights; UserError as `read_config`. Of a run under other numerics nothing else
    of its config is read: it may have settings that this hone does not know.
    """
    if provenance.other_numerics(run.info) is None:
        return read_config(run).precision
    _config_class(run)
    return str(run.config.get("precision"))


def _config_class(run: Run) -> type[RLConfig] | type[SFTConfig]:
    classes = {"rl": RLConfig, "sft": SFTConfig}
    if (kind := run.info["kind"]) not in classes:
        raise UserError(
            f"{run.path} is a run of `hone {kind}`, which has no steps: name a run of `hone rl` or `hone sft`"
        )
    if not (run.path / "config.toml").exists():
        raise UserError(f"{run.path} has no config.toml, so its steps can't be executed again: restore it")
    return classes[kind]


def rebuild(
    run: Run,
    model_name: str | None,
    replay_only: bool = False,
    files_checked: bool = False,
    trust_local_task: bool = False,
) -> Rebuilt:
    """Builds what it takes to execute the run's steps again; with `replay_only` without its task.

    `model_name` is where the initial model is now, if not where the run found it. With `files_checked` the caller has
    found every byte of the checkpoints as it was written; else that is looked at here. UserError if the task is a file
    in the current folder that is not the run's, unless `trust_local_task`.
    """
    config = read_config(run)
    task = config.data.env if isinstance(config, SFTConfig) else None if replay_only else config.orchestrator.env
    if task is not None:
        refuse_other_task(task.id, task.args, run.info.get("sources", {}).get("environment"), trust_local_task)
    records = Records(run)
    config = with_determinism(config, _device(config.model.device))
    model_config = config.model.model_copy(update={"device": _device(config.model.device)})
    if model_name is not None:
        model_config = model_config.model_copy(update={"name": model_name})
    config = config.model_copy(update={"model": model_config, "display": "auto"})
    config, model, renderer, without = _policy(run, records, config)
    configure(run.info.get("threads") or config.threads, model.num_parameters, bool(config.deterministic))
    if isinstance(config, RLConfig):
        execution, sources = _rl(config, model, renderer, records, without, replay_only)
    else:
        execution, sources = _sft(config, model, renderer, records)
    saved = run.checkpoints
    intact = saved.steps() if files_checked else [step for step in saved.steps() if not saved.problems(step)]
    tolerance = Tolerance(TOLERANCE[config.precision]) if most_ranks(run.info) > 1 else None
    versions = Versions(execution, records, intact, not without, machine.same_since(run.info), tolerance)
    return Rebuilt(config, renderer, versions, model_digests(model, renderer) | sources, without)


def _device(name: str) -> str:
    """The run's device, or the CPU where this machine has no such device: then it is another machine, and said so."""
    try:
        return device_of(name)
    except UserError:
        return device_of("cpu")


def _policy(run: Run, records: Records, config: Any) -> tuple[Any, Decoder, ChatRenderer, str]:
    """(config with the model that was loaded, the model, its renderer, why it is not the initial model or "")."""
    name = config.model.name
    try:
        model, renderer = load_policy(config), load_renderer(name, config.model.chat_template)
    except UserError as error:
        problem = f"its initial model {name} can't be loaded ({error})"
    else:
        expected = run.info.get("sources", {}).get("model") or records.recorded_fingerprint(0)
        if expected in (None, fingerprint(dict(model.named_parameters()))):
            return config, model, renderer, ""
        problem = f"{name} is not the model that it began with (its weights have another fingerprint)"
    exported = run.weights()
    if not exported:
        raise UserError(
            f"{run.path}: {problem}, and it has no weights to start from: say where the model is by --model"
        )
    template = config.model.chat_template
    gone = template is not None and "{" not in template and not Path(template).exists()
    folder = str(exported[max(exported)])  # it has the architecture and the tokenizer; a checkpoint brings the weights
    update = {"name": folder, "chat_template": None if gone else template}
    config = config.model_copy(update={"model": config.model.model_copy(update=update)})
    return config, load_policy(config), load_renderer(folder, config.model.chat_template), problem


def _rl(
    config: RLConfig, model: Decoder, renderer: ChatRenderer, records: Records, without: str, replay_only: bool
) -> tuple[Execution, dict[str, str]]:
    if without and config.trainer.loss.kl_coef > 0:
        raise UserError(f"the KL term of this run needs its initial model, but {without}: say where it is by --model")
    trainer = make_trainer(config, model, record_tokens=False)
    left_out = records.run.info.get("left_out", [])
    if replay_only:
        rows = records.run.info.get("pool", 1) + len(left_out)  # older runs, which don't say, have no curriculum
        return RLExecution(config, trainer, records, Curriculum.of_run(config, rows, left_out)), {}
    with _looking_here("task"):
        env = task_of(config)
        rows = len(env.split("train"))
    curriculum = Curriculum.of_run(config, rows, left_out)
    policy = own_policy(config, env, trainer, renderer)
    memory = Memory()
    evaluate = make_evaluate(config, env, renderer, policy, memory)
    sampler = GroupSampler(config, env, renderer, policy, curriculum)
    if not_resampled(config, records.run) is not None:
        return RLExecution(config, trainer, records, curriculum, sampler), task_digests(config, env)
    own_canary = config.mode != "split"  # that of a server is another one
    canary = Canary.of_run(config, sampler, renderer, policy, trainer, band_of(config)) if own_canary else None

    def publish(version: int) -> dict[str, float]:
        policy.load(version)
        return canary.measure(version).metrics() if canary else {}

    execution = RLExecution(config, trainer, records, curriculum, sampler, evaluate, publish, memory)
    return execution, task_digests(config, env)


def not_resampled(config: RLConfig | SFTConfig, run: Run) -> str | None:
    """Why the completions of a run can't be sampled again, in words; None if they can."""
    if not isinstance(config, RLConfig):
        return None
    if (sampled_by := machine.sampled_by(run.info) or config.sampled_by) is not None:
        return f"completions were sampled by {sampled_by}, which can't be asked again"
    if (ranks := most_ranks(run.info)) > 1:
        return f"the weights that sampled are those of {ranks} ranks, which one process meets up to rounding"
    return None


def _sft(
    config: SFTConfig, model: Decoder, renderer: ChatRenderer, records: Records
) -> tuple[Execution, dict[str, str]]:
    with _looking_here("data"):
        data = load_data(config, renderer, model)
    trainer = Trainer(model, config.optim, config.scheduler, config.max_steps, sft_objective)
    return SFTExecution(config, trainer, records, data.source, data.validation), data.digests


@contextmanager
def _looking_here(what: str) -> Iterator[None]:
    """Adds to an error about something that the run read that it has to be where the run found it."""
    try:
        yield
    except UserError as error:
        raise UserError(
            f"to execute steps again the {what} of the run is needed where the run had it: {error}"
        ) from None


def exported_parameters(folder: Path, precision: str) -> dict[str, torch.Tensor]:
    """The parameters of an exported model, by name."""
    return {name: p.detach() for name, p in load_model(folder, precision=precision).named_parameters()}
