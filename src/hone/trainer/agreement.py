"""What a trainer makes sure of before it takes part in a session: that both roles mean the same run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.model.files import TINY
from hone.runs import shards
from hone.runs.checkpoint import misfit
from hone.trainer.step import Trainer
from hone.transport import Session

_DECIDE = ("model.", "max_steps", "precision")
"""Of the shared keys those that decide what a trainer computes; the others may be left out of its config."""


def shared_values(config: RLConfig) -> dict[str, Any]:
    """The keys, dotted, that orchestrator and trainer must have equal, for `Session.shared`.

    A model in a folder here goes by its whole path, and `ckpt` is there if it is set.
    """
    name = config.model.name
    local = name != TINY and Path(name).exists()
    values: dict[str, Any] = {"model.name": str(Path(name).resolve()) if local else name}
    if name == TINY:
        values |= {f"model.init.{key}": value for key, value in config.model.init.model_dump().items()}
    for key in ("max_steps", "seq_len", "seed", "precision"):
        values[key] = getattr(config, key)
    for key, value in (config.ckpt.model_dump(mode="json") if config.ckpt else {}).items():
        values[f"ckpt.{key}"] = value
    return values


def check_agreement(config: RLConfig, session: Session, place: str) -> None:
    """UserError if the session has another value for a shared key; `place` says where those of `config` come from.

    A key that is left out here, and decides nothing here, is the session's.
    """
    theirs = _flat(session.shared)
    for key, ours in shared_values(config).items():
        top = key.split(".")[0]
        decides = key.startswith(_DECIDE) or (key == "seed" and config.model.name == TINY)
        if not decides and (top not in config.model_fields_set or (top == "ckpt" and ours is None)):
            continue
        if key not in theirs and top != "ckpt":
            continue  # an orchestrator that doesn't know the key
        if ours != theirs.get(key):
            raise UserError(
                f"{key} is {_shown(ours)} in {place}, but {_shown(theirs.get(key))} in the orchestrator's "
                f"({Path(session.output_dir) / 'config.toml'}): start both with the same, in both files or by "
                f"--{key.replace('_', '-')}"
            )


def checkpoint_of(session: Session) -> Path | None:
    """The folder that the session goes on from; None if it begins with the initial model. UserError if it is gone."""
    if session.checkpoint is None:
        return None
    folder = Path(session.checkpoint)
    if not folder.is_dir():
        raise UserError(
            f"the run goes on from {folder}, which this trainer does not see: give it the file system that the "
            "orchestrator writes to"
        )
    return folder


def check_checkpoint(folder: Path, trainer: Trainer) -> None:
    """UserError if a checkpoint is of another model than the trainer's. Reads no tensor."""
    if problem := misfit({"model": _stored_model(folder)}, dict(trainer.model.named_parameters())):
        raise UserError(
            f"{folder} is of another model than this trainer's ({problem}): start it with the model and the precision "
            "of the run"
        )


def _stored_model(folder: Path) -> dict[str, torch.Tensor]:
    """Shapes and dtypes of the model in a checkpoint, as tensors without content."""
    if shards.is_sharded(folder):
        stored = shards.reader(folder).read_metadata().state_dict_metadata
        facts = {name: (entry.size, entry.properties.dtype) for name, entry in stored.items()}  # pyright: ignore[reportAttributeAccessIssue]
        kept = {name.removeprefix("model/"): fact for name, fact in facts.items() if name.startswith("model/")}
        return {name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in kept.items()}
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name).to("meta") for name in file.keys()}  # noqa: SIM118 (not a dict)


def _flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else {f"{above}{name}": value}
    return flat


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value)
