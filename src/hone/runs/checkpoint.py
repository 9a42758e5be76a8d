"""Checkpoints: `checkpoints/step_N` has everything that an exact resume after N updates needs.

step_N/<group>.safetensors   one per group of tensors; several ranks write step_N/trainer/ instead (runs/shards.py)
step_N/state.json            counters, ledger, cursors: plain JSON
step_N/COMPLETE              size and SHA-256 of each file, written last
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.runs.files import NEW_PREFIX, dumps, is_complete, new_dir, save_tensors, verify, write_file
from hone.runs.view import steps_in

if TYPE_CHECKING:
    import torch

Tensors = dict[str, dict[str, "torch.Tensor"]]


class Checkpoints:
    """A run's checkpoints. It keeps the newest `keep_last`, and steps at multiples of `keep_interval`."""

    def __init__(self, folder: Path, keep_last: int | None = None, keep_interval: int | None = None):
        self.folder = folder
        self.keep_last = keep_last
        self.keep_interval = keep_interval

    def path(self, step: int) -> Path:
        return self.folder / f"step_{step}"

    def save(self, step: int, tensors: Tensors, state: dict[str, Any], part: Path | None = None) -> Path:
        """Write checkpoint `step` atomically, with the files of folder `part`. Equal content gives equal bytes."""
        with new_dir(self.path(step)) as folder:
            for entry in sorted(part.iterdir()) if part else ():
                entry.rename(folder / entry.name)
            save_groups(folder, tensors)
            write_file(folder / "state.json", dumps(state | {"step": step}) + "\n")
        if part:
            part.rmdir()
        return self.path(step)

    def part(self, step: int) -> Path:
        """Return an empty folder where other processes write files of checkpoint `step`; see `save`."""
        folder = self.folder / f"{NEW_PREFIX}part_{step}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def load(self, step: int, with_tensors: bool = True) -> tuple[Tensors, dict[str, Any]]:
        """Return the tensors (whole, on the CPU) and the state of checkpoint `step`. Call `problems` first."""
        folder = self.path(step)
        return load_groups(folder) if with_tensors else {}, json.loads((folder / "state.json").read_bytes())

    def steps(self) -> list[int]:
        """Return the steps of complete checkpoints (all files have the right names and sizes), ascending."""
        return [step for step in self._all() if is_complete(self.path(step))]

    def problems(self, step: int) -> list[str]:
        """Read all bytes of checkpoint `step`, and return why it can't be loaded; [] if it can."""
        if not self.path(step).is_dir():
            return ["there is no such checkpoint"]
        if problems := verify(self.path(step)):
            return problems
        state = json.loads((self.path(step) / "state.json").read_bytes())
        return [f"it holds version {state['step']}"] if state.get("step", step) != step else []

    def newest(self) -> tuple[int | None, list[str]]:
        """Return the newest step with an intact checkpoint, and a sentence on each newer one that is damaged."""
        warnings = []
        for step in reversed(self._all()):
            if not (problems := self.problems(step)):
                return step, warnings
            warnings.append(f"checkpoint step_{step} is damaged ({problems[0]}) and is not used")
        return None, warnings

    def remedy(self, but: int | None = None) -> str:
        steps = [step for step in self.steps() if step != but]
        if not steps:
            return "there is no complete checkpoint: leave out --resume to start again"
        return f"complete checkpoints: {', '.join(map(str, steps))} (--resume.step {steps[-1]})"

    def surplus(self, best: int | None = None) -> list[int]:
        """Return the steps of complete checkpoints to delete, ascending; never `best`."""
        old = self.steps()[: -self.keep_last] if self.keep_last else []
        return [step for step in old if step != best and (not self.keep_interval or step % self.keep_interval)]

    def _all(self) -> list[int]:
        return [step for step, path in steps_in(self.folder).items() if path.is_dir()]


def save_groups(folder: Path, tensors: Tensors) -> None:
    for group, named in tensors.items():
        whole = {name: tensor.detach().contiguous() for name, tensor in named.items()}
        save_tensors(whole, folder / f"{group}.safetensors")


def load_groups(folder: Path) -> Tensors:
    """Return the groups of tensors in `folder`, whole and on the CPU, however many ranks wrote them."""
    from safetensors.torch import load_file

    from hone.runs import shards

    if shards.is_sharded(folder):
        return shards.load(folder)
    return {file.stem: load_file(file) for file in sorted(folder.glob("*.safetensors"))}


def shapes(folder: Path) -> dict[str, torch.Tensor]:
    """Return the model's parameters in a checkpoint without their values, on torch's device `meta`."""
    from safetensors import safe_open

    from hone.runs import shards

    if shards.is_sharded(folder):
        return shards.shapes(folder)["model"]
    with safe_open(folder / "model.safetensors", framework="pt") as stored:
        return {name: stored.get_tensor(name).to("meta") for name in stored.keys()}  # noqa: SIM118 (not a dict)


def misfit(saved: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> str:
    """Return a difference (name, shape or dtype) between saved and current parameters of the model, or ""."""
    for name, parameter in parameters.items():
        if name not in saved:
            return f"{name} is missing"
        if saved[name].shape != parameter.shape:
            return f"{name} has shape {list(saved[name].shape)}, not {list(parameter.shape)}"
        if saved[name].dtype != parameter.dtype:
            return f"{name} is {saved[name].dtype}, not {parameter.dtype}"
    extra = sorted(saved.keys() - parameters.keys())
    return f"it has {extra[0]} as well" if extra else ""
