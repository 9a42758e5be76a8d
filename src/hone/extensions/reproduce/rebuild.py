"""Rebuild a recorded run to execute its steps again, with its recorded threads, precision and deterministic kernels."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import torch

from hone.config.base import changed
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.extensions.reproduce.execution import Rebuilt, RebuiltRL, RebuiltSFT
from hone.extensions.reproduce.records import Records
from hone.loops.machine import configure_run, device_of
from hone.loops.parts import load_policy
from hone.model.chat import ChatRenderer, load_renderer
from hone.model.decoder import Decoder
from hone.model.hf import load_model, model_config
from hone.model.lora import ADAPTER, load_adapter
from hone.runs import Run, view
from hone.runs.listing import find_run
from hone.runs.outputs import holder
from hone.runs.settings import moved
from hone.runs.summary import refuse_interrupted
from hone.trainer.fingerprint import fingerprint


def open_run(name: str) -> Run:
    """Open a run by directory or id. UserError if it is missing or being written, or if a resume of it was killed."""
    path = find_run(name)
    if holder(path) is not None:
        raise UserError(
            f"{path} is being written by a process: wait until it has ended (hone runs attach {shlex.quote(str(path))})"
        )
    refuse_interrupted(path)
    return Run(path)


def read_config(run: Run) -> RLConfig | SFTConfig:
    """Read the run's resolved config. Raises UserError for a kind of run that has no steps."""
    config = parse(_config_class(run), ["@", str(run.path / view.CONFIG)], f"hone {run.info['kind']}")
    if not run.info.get("kept"):
        return config
    return type(config).model_validate(moved(config.model_dump(), config.output_dir, run.path))


def read_precision(run: Run) -> str:
    """Return the precision of the run's weights, even if another version of hone wrote the config."""
    _config_class(run)
    return str(run.config.get("precision"))


def _config_class(run: Run) -> type[RLConfig] | type[SFTConfig]:
    classes = {"rl": RLConfig, "sft": SFTConfig}
    if (kind := run.info["kind"]) not in classes:
        raise UserError(
            f"{run.path} is a run of `hone {kind}`, which has no steps: name a run of `hone rl` or `hone sft`"
        )
    if not (run.path / view.CONFIG).exists():
        raise UserError(f"{run.path} has no config.toml, so its steps can't be executed again: restore it")
    return classes[kind]


def rebuild(run: Run, model_name: str | None, replay_only: bool = False, files_checked: bool = False) -> Rebuilt:
    """Build the parts to execute the run's steps again; if `replay_only`, without its task.

    `model_name` is the initial model, if it has moved. Checkpoints are checked, unless the caller has done so
    (`files_checked`). Call this within `trust.opened_run`. Raises UserError if the run's code is not trusted.
    """
    config, records = read_config(run), Records(run)
    try:
        device = device_of(config.model.device)
    except UserError:
        device = "cpu"  # a difference, and reported as one
    changes = {"model.device": device, "model.name": model_name or config.model.name, "display": "auto"}
    config = changed(config, changes | {"stop": None})  # a target does not end a re-execution
    config, model, renderer, missing_model = _load_model(run, records, config)
    configure_run(config, model, threads=run.info.get("threads"))
    saved = run.checkpoints
    intact = saved.steps() if files_checked else [step for step in saved.steps() if not saved.problems(step)]
    kind = RebuiltRL if isinstance(config, RLConfig) else RebuiltSFT
    return kind(config, model, renderer, records, intact, missing_model, replay_only)


def _load_model(run: Run, records: Records, config: Any) -> tuple[Any, Decoder, ChatRenderer, str]:
    """Return (config with the loaded model, the model, its renderer, why it is not the initial model or "")."""
    name = config.model.name
    try:
        model, renderer = load_policy(config), _renderer(name, config)
    except UserError as error:
        problem = f"its initial model {name} can't be loaded ({error})"
    else:
        recorded = run.info.get("sources", {})
        expected = recorded.get("model") or records.hashes.get(0, {}).get("weights")
        same = expected in (None, fingerprint(model.base))
        if same and (model.lora is None or recorded.get("adapter") in (None, fingerprint(model.trained))):
            return config, model, renderer, ""
        what = f"the adapter {config.model.lora.path}" if same else name
        problem = f"{what} is not the model that the run began with (its weights have another fingerprint)"
    if config.model.lora is not None:
        adapter = f", and restore its adapter to {path}" if (path := config.model.lora.path) else ""
        raise UserError(
            f"{run.path}: {problem}, and its checkpoints hold only the adapter: name the model with --model{adapter}"
        )
    exported = run.weights()
    if not exported:
        raise UserError(
            f"{run.path}: {problem}, and it has no weights to start from: give the model's place with --model"
        )
    template = config.model.chat_template
    gone = template is not None and "{" not in template and not Path(template).exists()
    folder = str(exported[max(exported)])  # it has the architecture and the tokenizer; a checkpoint brings the weights
    config = changed(config, {"model.name": folder, "model.chat_template": None if gone else template})
    return config, load_policy(config), _renderer(folder, config), problem


def _renderer(name: str, config: Any) -> ChatRenderer:
    return load_renderer(name, config.model.chat_template, config.model.special_tokens)


def exported_parameters(folder: Path, precision: str, implementation: str) -> dict[str, torch.Tensor]:
    """Load the parameters of an exported model by name; with LoRA, only the parameters of the adapter in `folder`."""
    if (folder / ADAPTER).is_dir():
        return load_adapter(folder / ADAPTER, model_config(folder, implementation=implementation))
    return merged_parameters(folder, precision, implementation)


def merged_parameters(folder: Path, precision: str, implementation: str) -> dict[str, torch.Tensor]:
    """Load the parameters of an exported model by name, with any adapter merged in."""
    model = load_model(folder, precision=precision, implementation=implementation)
    return {name: p.detach() for name, p in model.named_parameters()}
