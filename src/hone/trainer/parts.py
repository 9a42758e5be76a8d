"""The trainer's part of a checkpoint: model and optimiser.

A single rank writes `model.safetensors` and `optimizer.safetensors`. Several ranks write their rows into `trainer/`,
with `torch.distributed.checkpoint`. Any number of ranks can read both forms, and each rank reads only its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from hone.runs import shards
from hone.runs.checkpoint import load_groups, save_groups
from hone.trainer.parallel import is_sharded, rows_of, sharded_like
from hone.trainer.step import Trainer


def save_part(folder: Path, trainer: Trainer) -> None:
    """Write model and optimiser into the existing `folder`. All ranks must call this together."""
    if trainer.ranks.alone:
        save_groups(folder, trainer.tensors())
    else:
        shards.save(folder, trainer.tensors(), trainer.ranks.control)


def load_part(folder: Path, trainer: Trainer, version: int) -> None:
    """Restore what `save_part` wrote at `version`, bit for bit. All ranks must call this together."""
    parameters = dict(trainer.model.named_parameters())
    if trainer.ranks.alone:
        tensors = load_groups(folder)
    elif shards.is_sharded(folder):

        def make(key: str, shape: Tensor) -> Tensor:
            if not shape.ndim:
                return torch.empty_like(shape, device="cpu")
            return torch.empty_like(parameters[_parameter(key)], dtype=shape.dtype, requires_grad=False)

        tensors = shards.load(folder, make, trainer.ranks.control)
    else:
        tensors = _rows_of_rank(folder, parameters)
    trainer.load_tensors(tensors, version)


def _parameter(key: str) -> str:
    """Return the parameter's name, the last part of a key such as `optimizer/KIND/NAME`."""
    return key.split("/")[-1]


def _rows_of_rank(folder: Path, parameters: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    tensors: dict[str, dict[str, Tensor]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        named = tensors[file.stem] = {}
        with safe_open(file, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 (not a dict)
                parameter = parameters[_parameter(key)]
                part = stored.get_slice(key)
                if not part.get_shape() or not is_sharded(parameter):
                    named[key] = stored.get_tensor(key)
                    continue
                start, stop = rows_of(parameter)
                named[key] = sharded_like(part[start:stop].to(parameter.device), parameter)
    return tensors
