"""Loads new weights into a served model."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import torch

from hone.errors import UserError
from hone.model.decoder import Decoder
from hone.model.hf import WEIGHTS_INDEX, load_model, non_finite, read_config, weight_files


class WeightsFolder:
    """Loads weights only from the folder `root`, or from `memory`, a folder in shared memory.

    A model's config, index and weight files must lie in these folders even after links are followed. Raises UserError
    if `root` is no folder.
    """

    def __init__(self, root: Path, memory: Path | None = None) -> None:
        self.root, self.memory = root.resolve(), memory and memory.resolve()
        if not self.root.is_dir():
            raise UserError(f"weights_root = {root} is not a folder: give an existing one")

    def load(self, path: str, model: Decoder) -> Decoder:
        """Load the model in `path` (relative to `root`) on the host. Files in `memory` are mapped (see `load_model`).

        Raises UserError unless the model has the shape of `model` and only finite weights.
        """
        folder = self._resolve(self.root / path, path)
        with suppress(OSError):
            os.listdir(folder.parent)  # makes NFS look for new folders
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}: give a folder of saved weights, such as weights/step_20")
        for name in ("config.json", "generation_config.json", WEIGHTS_INDEX):
            self._resolve(folder / name, f"{path}/{name}")
        config = read_config(folder, model.config.implementation)
        for file in weight_files(folder):
            self._resolve(file, f"{path}/{file.name}")
        for field in fields(model.config):
            ours, theirs = getattr(model.config, field.name), getattr(config, field.name)
            if ours != theirs:
                raise UserError(f"{path} is another model: its {field.name} is {theirs}, the served one's {ours}")
        mapped, by, precision = self._is_in_memory(folder), model.config.implementation, model.precision
        if model.device.type != "cpu" and precision == "bf16_linear":
            precision = "fp32"  # load only the parameters: their casts are on the GPU
        loaded = load_model(folder, precision=precision, mapped=mapped, implementation=by)
        if (bad := non_finite(loaded)) is not None:
            name, count = bad
            raise UserError(f"{path} is refused: {count} values of {name} are not finite; give earlier weights")
        return loaded

    def _resolve(self, file: Path, name: str) -> Path:
        """Return `file` without links. Raises UserError, with `name`, if it is not under `root` or `memory`."""
        try:
            resolved = file.resolve()
            resolved.exists()
        except (OSError, ValueError, RuntimeError) as error:  # too long, has a NUL, or a circle of links
            raise UserError(f"{name[:80]!r} is no valid path ({error}): save the weights in {self.root}") from None
        if not resolved.is_relative_to(self.root) and not self._is_in_memory(resolved):
            raise UserError(f"{name} is not under the weights root {self.root}: save the weights there")
        return resolved

    def _is_in_memory(self, resolved: Path) -> bool:
        return self.memory is not None and resolved.is_relative_to(self.memory)


@torch.no_grad()
def swap_weights(source: Decoder, target: Decoder) -> None:
    """Give `target` the parameters of `source`, a model on the host that must not be used afterwards.

    On a CPU, the models exchange tensors; the old tensors are freed with `source`. On a GPU, parameters are overwritten
    in place, one by one, because CUDA graphs hold their addresses, and a second model may not fit.
    """
    if target.device.type == "cpu":
        target.exchange(source)
        return
    for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
        ours.copy_(theirs)
    target.refresh()
