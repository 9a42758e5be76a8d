"""Loads and saves LoRA adapters in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hone import rng
from hone.errors import UserError
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.model.files import read_json, write_json
from hone.model.hf import METADATA, unsharded
from hone.model.names import hf_slices
from hone.runs.files import save_tensors

if TYPE_CHECKING:
    from hone.config.shared import LoraConfig

ADAPTER = "adapter"
"""Name of the adapter's folder inside a folder of merged weights."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE = "hone_base.json"
"""File with the model's `base_digest`. PEFT would warn of it in `CONFIG`; metadata of `WEIGHTS` has a random order."""
_PLAIN = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "bias": "none",
    "fan_in_fan_out": False,
    "use_rslora": False,
    "use_dora": False,
}
_UNSUPPORTED = ("modules_to_save", "rank_pattern", "alpha_pattern", "layers_to_transform", "layer_replication")
_CHANGE_BASE = ("pissa", "corda", "olora", "lora_ga", "loftq")
"""If `init_lora_weights` begins with one of these, PEFT changes the base (subtracts the initial B A, or quantises)."""


def peft_slices(config: DecoderConfig, rank: int) -> dict[str, tuple[str, int, int | None]]:
    """Map PEFT's name → (decoder's parameter, first row, end row or None), in the decoder's order."""
    if config.implementation == "transformers":
        from hone.model.foreign import NET, TransformersConfig

        assert isinstance(config, TransformersConfig)
        halves = [f"{name}.lora_{half}" for name in config.linear for half in "AB"]
        return {f"base_model.model.{name}.weight": (f"{NET}.{name}", 0, None) for name in halves}
    slices, rows_used = dict[str, tuple[str, int, int | None]](), Counter[str]()
    for name, (parameter, start, end) in hf_slices(config).items():
        if name.endswith("_proj.weight"):
            theirs, ours = name.removesuffix("weight"), parameter.removesuffix("weight")
            slices[f"base_model.model.{theirs}lora_A.weight"] = f"{ours}lora_A", rows_used[ours], rows_used[ours] + rank
            slices[f"base_model.model.{theirs}lora_B.weight"] = f"{ours}lora_B", start, end
            rows_used[ours] += rank
    return slices


@torch.no_grad()
def start_adapter(model: Decoder, seed: int) -> None:
    """Load the adapter in `model.lora.path`. Without a path, draw A uniformly in ±1/sqrt(in) (PEFT's default), B 0."""
    assert model.lora is not None
    if model.lora.path is not None:
        folder = Path(model.lora.path).expanduser()
        tensors = load_adapter(folder, model.config, model.lora)
        base = read_json(folder, BASE).get("digest")
        if base not in (None, model.base_digest):
            merged = " (the weights beside an adapter include it)" if (folder.parent / "config.json").exists() else ""
            raise UserError(
                f"the adapter in {folder} was trained on other weights than this model's: set --model to what its "
                f"run started from{merged}, or delete {BASE} there if these are the same weights in another form"
            )
        for name, parameter in model.trained.items():
            if tensors[name].shape != parameter.shape:
                raise UserError(
                    f"the adapter in {folder} is of another model ({name} has another shape): set --model to the model "
                    "it was trained on"
                )
            parameter.copy_(tensors[name])
        return
    for name, parameter in model.trained.items():
        if name.endswith("lora_A"):
            values = 2 * rng.stream(seed, "lora", name).random(tuple(parameter.shape), dtype=np.float32) - 1
            parameter.copy_(torch.from_numpy(values / np.float32(math.sqrt(parameter.shape[1]))))


def save_adapter(
    model: Decoder,
    folder: Path,
    parameters: Mapping[str, Tensor] | None = None,
    whole: Callable[[Tensor], Tensor] = unsharded,
    write: bool = True,
) -> None:
    """Write the adapter in PEFT's layout. For `parameters`, `whole` and `write` see `save_model`."""
    lora, parameters = model.lora, parameters or model.trained
    assert lora is not None
    parameters = {name: whole(parameters[name].detach()) for name in model.trained}
    if not write:
        return
    folder.mkdir(exist_ok=True)
    slices = peft_slices(model.config, lora.rank)
    tensors = {name: parameters[of][start:end].cpu().contiguous() for name, (of, start, end) in slices.items()}
    save_tensors(tensors, folder / WEIGHTS, METADATA)
    write_json(folder / BASE, {"digest": model.base_digest})
    targets = {"target_modules": sorted({name.split(".")[-3] for name in slices})}
    facts = {"r": lora.rank, "lora_alpha": lora.alpha, "base_model_name_or_path": model.base_id, "inference_mode": True}
    write_json(folder / CONFIG, _PLAIN | facts | targets)


def load_adapter(folder: Path, config: DecoderConfig, lora: LoraConfig | None = None) -> dict[str, Tensor]:
    """Read the decoder's adapter parameters (fp32, on the CPU) from a folder that PEFT or `save_adapter` wrote.

    Raises UserError if it is incomplete, no plain LoRA on all linear layers, or differs from `lora` in rank or alpha.
    """
    if not (folder / CONFIG).is_file():
        beside = f" {folder / ADAPTER}" if (folder / ADAPTER / CONFIG).exists() else " in PEFT's layout"
        raise UserError(f"{folder} has no {CONFIG}: give the folder of an adapter,{beside}")
    found = read_json(folder, CONFIG, needed=True)
    odd = [f"{key} = {found[key]}" for key, value in _PLAIN.items() if found.get(key) not in (value, None)]
    if odd := odd + [key for key in _UNSUPPORTED if found.get(key)]:
        raise UserError(f"the adapter in {folder} has {', '.join(odd)}, which hone does not support: give a plain LoRA")
    if (start := str(found.get("init_lora_weights")).lower()).startswith(_CHANGE_BASE):
        raise UserError(
            f"the adapter in {folder} is for a base that init_lora_weights = {start} has changed: convert it with PEFT "
            "(save_pretrained's path_initial_model_for_weight_conversion)"
        )
    rank, alpha = found.get("r"), found.get("lora_alpha")
    if type(rank) is not int:
        raise UserError(
            f"{folder / CONFIG} lacks the adapter's rank (r = {rank}): restore it from the adapter's source"
        )
    if lora is not None and (rank, alpha) != (lora.rank, lora.alpha):
        raise UserError(
            f"the adapter in {folder} has rank {rank} and alpha {alpha}, model.lora has {lora.rank} and {lora.alpha}: "
            f"set --model.lora.rank {rank} --model.lora.alpha {alpha}"
        )
    if not (folder / WEIGHTS).is_file():  # opening a pipe would wait for who writes into it
        raise UserError(f"{folder} has no file {WEIGHTS}: complete the folder")
    try:
        tensors = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{folder / WEIGHTS} cannot be read ({error}): complete the folder") from error
    slices = peft_slices(config, rank)
    if odd := sorted(slices.keys() ^ tensors.keys()):
        raise UserError(
            f"the adapter in {folder} {'lacks' if odd[0] in slices else 'has unknown'} {odd[0]}: "
            "give an adapter of all linear layers only (target_modules = all-linear in PEFT)"
        )
    groups = groupby(sorted(slices, key=lambda name: slices[name][:2]), key=lambda name: slices[name][0])
    if odd := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise UserError(f"values of {odd[0]} are not finite: restore {folder / WEIGHTS}")
    joined = {parameter: [tensors[name].float() for name in names] for parameter, names in groups}
    return {parameter: torch.cat(parts) for parameter, parts in joined.items()}
