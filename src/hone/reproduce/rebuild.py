"""A recorded run put together again, so that its steps can be taken anew: config, model, task or data, versions.

Threads, precision and deterministic kernels are set as the run recorded them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from hone.algorithms.losses import sft_objective
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
from hone.orchestrator.canary import Canary, band_from_config, canary_metrics
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.groups import GroupSampler
from hone.reproduce import machine
from hone.reproduce.compare import Difference, first_difference
from hone.reproduce.execution import Execution, Memory, RLExecution, SFTExecution
from hone.reproduce.records import CANARY, EVALUATIONS, SENT_BACK, Records
from hone.runs import Run, provenance
from hone.runs.listing import find_run
from hone.runs.outputs import holder
from hone.runs.provenance import most_ranks
from hone.runs.settings import moved
from hone.runs.summary import refuse_interrupted
from hone.trainer.fingerprint import fingerprint
from hone.trainer.step import Trainer

OnStep = Callable[[int], None]
TOLERANCE = {"fp32": 1e-5, "bf16_linear": 1e-3, "bf16": 1e-3}
"""Largest distance of the loss of several ranks from that of one process on the same batches, relative to its terms."""


def open_run(name: str) -> Run:
    """Open the run of this directory or id. Raises UserError if there is none, a process is writing it, or a resume of
    it was killed while it rolled the run back.
    """
    path = find_run(name)
    if holder(path) is not None:
        raise UserError(
            f"{path} is being written by a process: wait until it has ended (hone runs attach {shlex.quote(str(path))})"
        )
    refuse_interrupted(path)
    return Run(path)


def read_config(run: Run) -> RLConfig | SFTConfig:
    """Read the run's config, as it was resolved. Raises UserError for a kind of run that has no steps."""
    config = parse(_config_class(run), ["@", str(run.path / "config.toml")], f"hone {run.info['kind']}")
    if not run.info.get("kept"):
        return config
    return type(config).model_validate(moved(config.model_dump(), config.output_dir, run.path))


def read_precision(run: Run) -> str:
    """Return the precision of the run's weights, of whatever version of hone its other settings are."""
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
    """Build what it takes to execute the run's steps again; with `replay_only` without its task.

    `model_name` is where the initial model is now, if not where the run found it. `files_checked`: the caller has
    checked every byte of the checkpoints; else they are checked here. Raises UserError if the task is a file in the
    current folder that is not the run's, unless `trust_local_task`.
    """
    config = read_config(run)
    task = config.data.env if isinstance(config, SFTConfig) else None if replay_only else config.orchestrator.env
    if task is not None:
        refuse_other_task(task.id, task.args, run.info.get("sources", {}).get("environment"), trust_local_task)
    records, device = Records(run), _device(config.model.device)
    config = with_determinism(config, device)
    model_config = config.model.model_copy(update={"device": device, "name": model_name or config.model.name})
    config = config.model_copy(update={"model": model_config, "display": "auto"})
    config, model, renderer, missing_model = _load_model(run, records, config)
    configure(run.info.get("threads") or config.threads, model.num_parameters, bool(config.deterministic))
    if isinstance(config, RLConfig):
        execution, sources = _rl(config, model, renderer, records, missing_model, replay_only)
    else:
        with _needed_here("data"):
            data = load_data(config, renderer, model)
        trainer = Trainer(model, config.optim, config.scheduler, config.max_steps, sft_objective)
        execution, sources = SFTExecution(config, trainer, records, data.source, data.validation), data.digests
    saved = run.checkpoints
    intact = saved.steps() if files_checked else [step for step in saved.steps() if not saved.problems(step)]
    return Rebuilt(
        config, renderer, execution, records, intact, missing_model, model_digests(model, renderer) | sources
    )


def _device(name: str) -> str:
    """Return the run's device, or the CPU where this machine has no such device: a difference, and reported as one."""
    try:
        return device_of(name)
    except UserError:
        return device_of("cpu")


def _load_model(run: Run, records: Records, config: Any) -> tuple[Any, Decoder, ChatRenderer, str]:
    """Return (config with the model that was loaded, the model, its renderer, why it is not the initial one or "")."""
    name = config.model.name
    try:
        model, renderer = load_policy(config), load_renderer(name, config.model.chat_template)
    except UserError as error:
        problem = f"its initial model {name} can't be loaded ({error})"
    else:
        expected = run.info.get("sources", {}).get("model") or records.hashes.get(0, {}).get("weights")
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
    config: RLConfig, model: Decoder, renderer: ChatRenderer, records: Records, missing_model: str, replay_only: bool
) -> tuple[Execution, dict[str, str]]:
    if missing_model and config.trainer.loss.kl_coef > 0:
        raise UserError(
            f"the KL term of this run needs its initial model, but {missing_model}: say where it is by --model"
        )
    trainer = make_trainer(config, model, record_tokens=False)
    left_out = records.run.info.get("left_out", [])
    if replay_only:
        rows = records.run.info.get("pool", 1) + len(left_out)  # older runs, which don't say, have no curriculum
        return RLExecution(config, trainer, records, Curriculum.from_config(config, rows, left_out)), {}
    with _needed_here("task"):
        env = task_of(config)
        rows = len(env.split("train"))
    curriculum = Curriculum.from_config(config, rows, left_out)
    policy = own_policy(config, env, trainer, renderer)
    memory: Any = Memory()
    sampler = GroupSampler(config, env, renderer, policy, curriculum)
    if why_not_resampled(config, records.run) is not None:
        return RLExecution(config, trainer, records, curriculum, sampler), task_digests(config, env)
    evaluate = make_evaluate(config, env, renderer, policy, memory)
    own_canary = config.mode != "split"  # that of a server is another one
    canary = Canary.from_config(config, sampler, policy, trainer) if own_canary else None

    def publish(version: int) -> dict[str, float]:
        policy.load(version)
        return canary_metrics(canary.measure(), band_from_config(config)) if canary else {}

    execution = RLExecution(config, trainer, records, curriculum, sampler, evaluate, publish, memory)
    return execution, task_digests(config, env)


def why_not_resampled(config: RLConfig | SFTConfig, run: Run) -> str | None:
    """Say why the completions of a run can't be sampled again; None if they can."""
    if not isinstance(config, RLConfig):
        return None
    if (sampled_by := machine.sampled_by(run.info) or config.sampled_by) is not None:
        return f"completions were sampled by {sampled_by}, which can't be asked again"
    if (ranks := most_ranks(run.info)) > 1:
        return f"the weights that sampled are those of {ranks} ranks, which one process meets up to rounding"
    return None


@contextmanager
def _needed_here(what: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        raise UserError(
            f"to execute steps again the {what} of the run is needed where the run had it: {error}"
        ) from None


def exported_parameters(folder: Path, precision: str) -> dict[str, torch.Tensor]:
    """Load the parameters of an exported model, by name."""
    return {name: p.detach() for name, p in load_model(folder, precision=precision).named_parameters()}


class Rebuilt:
    """A recorded run that can be executed again, from the checkpoints that are `intact` or from the initial model.

    `missing_model` says why the initial model could not be loaded, "" if it was. `sources` are digests of what the run
    reads, as in run.json. Versions before `first` are left out: their steps were taken with other settings. `limit` is
    how far values of training may be apart, relative to their size: 0, but for a run of several ranks.
    """

    def __init__(
        self,
        config: Any,
        renderer: ChatRenderer,
        execution: Execution,
        records: Records,
        intact: Sequence[int],
        missing_model: str,
        sources: dict[str, str],
    ) -> None:
        self.config, self.renderer, self.execution, self.records = config, renderer, execution, records
        self.missing_model, self.sources = missing_model, sources
        self.first = machine.unchanged_since(records.run.info)
        self.limit = TOLERANCE[config.precision] if most_ranks(records.run.info) > 1 else 0.0
        self.intact = [version for version in intact if version >= self.first]
        initial = [] if missing_model or self.first else [0]
        self.loadable = sorted({*self.intact, *initial})
        self.loaded = -1
        """The version that was loaded last."""

    @property
    def machine(self) -> dict[str, Any]:
        """The facts about this process that run.json holds about the run's."""
        return machine.this_machine() | {"sources": {"code": provenance.code()} | self.sources}

    def nearest(self, version: int) -> int | None:
        """Return the newest that can be loaded and is not after `version`; None if there is none."""
        return max((loadable for loadable in self.loadable if loadable <= version), default=None)

    def name(self, version: int) -> str:
        """Say where a loadable version comes from."""
        return f"checkpoint step_{version}" if version in self.intact else "the initial model"

    def approach(self, version: int) -> None:
        """Load the nearest version, unless the current one is nearer still."""
        nearest = self.nearest(version)
        assert nearest is not None, f"no version up to {version} can be loaded"
        if self.loaded < 0 or not nearest < self.execution.trainer.version <= version:
            self.load(nearest)

    def load(self, version: int) -> None:
        """Put the execution where the run was before step `version`: the initial model only if nothing was done yet."""
        trainer, state, saved = self.execution.trainer, None, self.records.run.checkpoints
        if version in self.intact:
            tensors, state = saved.load(version)
            try:
                trainer.load_tensors(tensors, version)
            except (KeyError, RuntimeError, ValueError) as error:
                raise UserError(
                    f"{saved.path(version)} is not a checkpoint of this run ({type(error).__name__}: "
                    f"{str(error).splitlines()[0]}), though it fits its COMPLETE: restore it from another copy"
                ) from error
        assert trainer.version == version
        self.loaded = version
        self.execution.begin(state)

    def replay(self, until: int, on_step: OnStep = lambda step: None) -> Difference | None:
        """Take the steps up to version `until` again from their recorded rollouts, and compare each with the record.

        Stops at the first step that differs and returns how.
        """
        while (step := self.execution.trainer.version) < until:
            on_step(step)
            recorded = self.records.record(step, without=(*EVALUATIONS, *CANARY, *SENT_BACK))
            if difference := first_difference(recorded, self.execution.replay(step), self.limit):
                return difference
        return None
