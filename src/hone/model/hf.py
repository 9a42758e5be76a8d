"""Loads and saves a model's weights and config in Hugging Face layout.

Saving splits the decoder's fused parameters into transformers' tensors; loading joins the tensors again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from hone.errors import UserError
from hone.model.config import DecoderConfig
from hone.model.decoder import PRECISIONS, Decoder, LoraLinear
from hone.model.device import has_bf16
from hone.model.files import TINY, is_hub_id, read_json, resolve_model, write_json
from hone.model.names import check_finite, check_tensors, hf_slices
from hone.model.presets import random_decoder, tiny_config
from hone.runs.files import save_tensors

if TYPE_CHECKING:
    from hone.config.shared import InitConfig, LoraConfig

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD_BYTES = 5 * 10**9
ALIGNMENT = 64
"""PyTorch aligns CPU tensors to this many bytes. Without alignment, products may be rounded differently."""
METADATA = {"format": "pt"}
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def unsharded(tensor: Tensor) -> Tensor:
    """Return `tensor`. The default of `whole`, for a model that isn't sharded."""
    return tensor


def read_config(folder: Path, implementation: str = "auto") -> DecoderConfig:
    """Read the config of the model in `folder`. For special token ids, generation_config.json wins over config.json.

    `implementation`: see `model.implementation`. Raises UserError if this implementation can't compute the model.
    """
    config = read_json(folder, "config.json", needed=True)
    generation = read_json(folder, "generation_config.json")
    for key in ("eos_token_id", "bos_token_id", "pad_token_id"):
        if generation.get(key) is not None:
            config[key] = generation[key]
    if implementation == "transformers":
        return _read_foreign(folder, config)
    try:
        return DecoderConfig.from_hf(config)
    except UserError as error:
        if implementation == "hone":
            raise UserError(f"{error}. Leave out model.implementation to use transformers' layers") from None
        if config.get("model_type") is None:
            raise
        try:
            return _read_foreign(folder, config)
        except UserError as other:
            raise UserError(f"{error}. With transformers' code: {other}") from None


def _read_foreign(folder: Path, config: dict[str, Any]) -> DecoderConfig:
    """Read a config for transformers. Raises UserError if it has more layers than the weight files have tensors."""
    layers = config.get("num_hidden_layers")
    if type(layers) is int and layers > 1000 and layers > len(file_shapes(weight_files(folder))):
        raise UserError(
            f"{folder / 'config.json'} has {layers:,} layers, more than the weights have tensors: restore this file"
        )
    from hone.model.foreign import TransformersConfig

    return TransformersConfig.read(folder, config)


def model_config(
    path_or_preset: str | Path, init: InitConfig | None = None, implementation: str = "auto"
) -> DecoderConfig:
    if str(path_or_preset) == TINY:
        return tiny_config(init)
    return read_config(resolve_model(path_or_preset), implementation)


def load_model(
    path_or_preset: str | Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    precision: str = "fp32",
    seed: int = 0,
    init: InitConfig | None = None,
    mapped: bool = False,
    implementation: str = "auto",
    lora: LoraConfig | None = None,
) -> Decoder:
    """Load a decoder from a folder in Hugging Face layout, a hub id, or the preset `hone/tiny`.

    Weights are cast to `dtype`: float32, or bfloat16, which implies precision "bf16". `seed` and `init` set the
    preset's random weights and size; other models ignore them. With `lora`, the weights are frozen, and the adapter is
    left uninitialised (see `hone.model.lora`). Raises UserError for bf16 on a GPU without bf16, and if weights are
    missing, unknown, of wrong shape or not finite.

    If `mapped` is true, parameters on a CPU are views of the files, where a file has the decoder's order and dtype (see
    `reserve_files`). These files must not change while the model is used. Mapped weights are not checked for NaN.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise UserError(f"dtype {dtype} is not supported: use torch.float32 or torch.bfloat16")
    if precision not in PRECISIONS:
        raise UserError(f"precision {precision!r} is not known: use one of {', '.join(PRECISIONS)}")
    if dtype == torch.bfloat16:
        precision = "bf16"
    place = torch.device(device)
    if precision == "bf16" and place.type == "cuda" and not has_bf16(place):
        raise UserError(
            f"precision = bf16 needs a GPU of compute capability 8.0 (Ampere) or more, and {place} is older: "
            "use precision = bf16_linear or fp32"
        )
    if str(path_or_preset) == TINY:
        model = random_decoder(tiny_config(init), seed, precision, lora).to(device)
        model.base_digest = hashlib.sha256(f"{TINY} {seed} {init}".encode()).hexdigest()
        return model
    folder = resolve_model(path_or_preset)
    config = read_config(folder, implementation)
    files = weight_files(folder)
    if config.implementation == "transformers":
        from hone.model import foreign

        model = foreign.load(folder, cast(foreign.TransformersConfig, config), place, precision, lora)
    else:
        check_tensors(config, file_shapes(files), f"the weights in {folder}", "its config.json")
        with torch.device(device):
            model = Decoder(config, precision, lora=lora)
        _load_weights(model, files, mapped and place.type == "cpu")
    if lora is not None:
        name = str(path_or_preset)
        model.base_id, model.base_digest = name if is_hub_id(name) else None, rows_digest(files)
    model.generation_config = read_json(folder, "generation_config.json") or model.generation_config
    return model


def save_model(
    model: Decoder,
    folder: str | Path,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    dtype: torch.dtype | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    whole: Callable[[Tensor], Tensor] = unsharded,
    write: bool = True,
    reserved: bool = False,
) -> None:
    """Write config, generation config and weights in `dtype` (default: the model's), with any adapter merged.

    The written bytes depend only on the model. Other weight files in the folder are removed. The write is not atomic:
    if needed, save to a temporary folder and rename it. `parameters` replace the model's parameters by name, so that a
    thread can write copies while training goes on.

    `whole` gathers a sharded parameter from all ranks, for one file at a time. All ranks call this, other ranks with
    `write` false. If `reserved` is true, the files that `reserve_files` made are filled.
    """
    folder = Path(folder)
    dtype = dtype or model.embed.dtype
    if write:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in [] if reserved else [*folder.glob("model*.safetensors"), folder / WEIGHTS_INDEX]:
            stale.unlink(missing_ok=True)
        write_json(folder / "config.json", model.config.to_hf() | {"dtype": str(dtype).removeprefix("torch.")})
        write_json(folder / "generation_config.json", model.generation_config)
    slices = hf_slices(model.config)
    parameters = model.weights | dict(parameters or {})
    files, total = _files(slices, parameters, max_shard_bytes, dtype), 0
    for file, shapes in files.items():
        tensors: dict[str, Tensor] = {}
        with _tensors_of(folder / file) if write and reserved else nullcontext() as place:
            for parameter, names in groupby(shapes, lambda name: slices[name][0]):
                value = merged(model, parameter, parameters, whole)
                for name in names if write else ():
                    part = value[slices[name][1] : slices[name][2]].to("cpu", dtype).contiguous()
                    total += part.nbytes
                    if place is None:
                        tensors[name] = part
                    else:
                        _append(place, part)
        if tensors:
            save_tensors(tensors, folder / file, METADATA)
    if write and len(files) > 1:
        weight_map = {name: file for file, shapes in files.items() for name in shapes}
        write_json(folder / WEIGHTS_INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def reserve_files(
    model: Decoder, folder: Path, max_shard_bytes: int = MAX_SHARD_BYTES, dtype: torch.dtype | None = None
) -> None:
    """Make files of full size that other processes can map, for `save_model` to fill.

    Tensors lie end to end in the decoder's order, in `dtype` or the decoder's dtype, and the first begins at a multiple
    of `ALIGNMENT`. Files in `folder` from another version are overwritten. Raises OSError if the disk is full.
    """
    folder.mkdir(exist_ok=True)
    dtype, parameters = dtype or model.embed.dtype, model.weights
    for file, shapes in _files(hf_slices(model.config), parameters, max_shard_bytes, dtype).items():
        entries: dict[str, Any] = {"__metadata__": METADATA}
        end = 0
        for name, shape in shapes.items():
            begin, end = end, end + math.prod(shape) * dtype.itemsize
            code = next(code for code in _DTYPES if _DTYPES[code] == dtype)
            entries[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(entries).encode()
        text += b" " * (-(8 + len(text)) % ALIGNMENT)
        with open(folder / file, "ab") as target:
            if target.tell() != (size := 8 + len(text) + end):
                target.truncate(0)
                os.posix_fallocate(target.fileno(), 0, size)
        with open(folder / file, "r+b") as target:
            target.write(len(text).to_bytes(8, "little") + text)


def copy_weights(source: Path, folder: Path) -> None:
    """Copy a model from reserved files into `folder`, with the bytes that `save_model` writes if not `reserved`."""
    for file in source.iterdir():
        if file.suffix == ".safetensors":
            save_tensors(load_file(file), folder / file.name, METADATA)
        elif file.is_dir():  # the adapter
            shutil.copytree(file, folder / file.name)
        else:
            shutil.copyfile(file, folder / file.name)


def _tensors_of(file: Path) -> BinaryIO:
    """Open a safetensors file for overwriting, positioned at the first tensor."""
    opened = open(file, "r+b", buffering=0)  # noqa: SIM115 (the caller closes it)
    opened.seek(8 + int.from_bytes(opened.read(8), "little"))
    return opened


def _append(file: BinaryIO, tensor: Tensor) -> None:
    rest: Any = memoryview(cast(Any, tensor.reshape(-1).view(torch.uint8).numpy()))
    while rest:  # the system takes 2 GiB at a time
        rest = rest[file.write(rest) :]


@torch.no_grad()
def merged(
    model: Decoder, name: str, parameters: Mapping[str, Any], whole: Callable[[Tensor], Tensor] = unsharded
) -> Tensor:
    """Return the parameter `name`. If it has an adapter, merge the adapter in fp32. `whole`: see `save_model`."""
    owner, _, kind = name.rpartition(".")
    if kind != "weight" or f"{owner}.lora_A" not in parameters:
        return whole(parameters[name].detach())
    layer = cast(LoraLinear, model.get_submodule(owner))
    lora_A, lora_B = (whole(parameters[f"{owner}.lora_{half}"].detach()) for half in "AB")
    return layer.merged(lora_A, lora_B, whole)


def hf_tensors(model: Decoder) -> Iterator[tuple[str, Tensor]]:
    """Yield (Hugging Face name, view of the parameter's rows) for every weight, in file order."""
    parameters = dict(model.named_parameters())
    for name, (parameter, start, end) in hf_slices(model.config).items():
        yield name, parameters[parameter].detach()[start:end]


def _files(
    slices: Mapping[str, tuple[str, int, int | None]],
    parameters: Mapping[str, Any],
    max_shard_bytes: int,
    dtype: torch.dtype,
) -> dict[str, dict[str, list[int]]]:
    """Map file → tensor → shape, in file order. A file has at most `max_shard_bytes`, or a single larger tensor."""
    shards: list[dict[str, list[int]]] = [{}]
    size = 0
    for name, (parameter, start, end) in slices.items():
        rows, *rest = parameters[parameter].shape
        shape = [len(range(rows)[start:end]), *rest]
        num_bytes = math.prod(shape) * dtype.itemsize
        if shards[-1] and size + num_bytes > max_shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = shape
        size += num_bytes
    if len(shards) == 1:
        return {WEIGHTS: shards[0]}
    return {f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors": shard for i, shard in enumerate(shards)}


def non_finite(model: Decoder) -> tuple[str, int] | None:
    """Return (Hugging Face name, number of NaN and infinite values) of the first tensor that has any; else None."""
    tensors = list(hf_tensors(model))
    # A sum takes one pass and no memory. It is not finite if an element is not, or if large elements overflow. All
    # sums are read at once, because each read waits for the device, and the device may be sampling.
    finite = torch.stack([tensor.sum().float() for _, tensor in tensors]).isfinite().tolist()
    for (name, tensor), known in zip(tensors, finite, strict=True):
        if not known and (count := int((~tensor.isfinite()).sum())):
            return name, count
    return None


def rows_digest(files: Iterable[Path]) -> str:
    """Digest each tensor's first row in bf16. fp32 and bf16 copies, in any number of files, have the same digest."""
    rows: dict[str, bytes] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                if not opened.get_slice(name).get_shape():
                    continue
                first = opened.get_slice(name)[:1].to(torch.bfloat16).contiguous()
                rows[name] = first.view(torch.uint8).numpy().tobytes()
    rows.pop("lm_head.weight", None)  # files of a tied head have it, or leave it out
    return hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a model's weights. Raises UserError if a file is missing."""
    if (folder / WEIGHTS_INDEX).is_file():
        weight_map = read_json(folder, WEIGHTS_INDEX).get("weight_map") or {}
        names = list(weight_map.values()) if isinstance(weight_map, dict) else [weight_map]
        texts = all(isinstance(name, str) and "\0" not in name and len(name) < 256 for name in names)
        if not texts or any(Path(name).is_absolute() or ".." in Path(name).parts for name in names):
            raise UserError(
                f"weight_map in {folder / WEIGHTS_INDEX} must map each tensor to a file in that folder: restore it"
            )
        files = [folder / name for name in sorted({str(name) for name in names})]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise UserError(f"{folder} lacks {', '.join(missing)}, named by {WEIGHTS_INDEX}: complete the download")
        if files:
            return files
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    hint = "convert its .bin weights to safetensors" if list(folder.glob("*.bin")) else "complete the download"
    raise UserError(f"{folder} has a config.json but no {WEIGHTS}: {hint}, or give another folder")


def file_shapes(files: Iterable[Path]) -> dict[str, list[int]]:
    """Return the shape of each tensor in safetensors files. Raises UserError if a file can't be read."""
    shapes: dict[str, list[int]] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} cannot be read ({error}): complete the download") from error
    return shapes


@torch.no_grad()
def _load_weights(model: Decoder, files: list[Path], mapped: bool = False) -> None:
    """Copy each weight into its parameter's rows, or map it if `mapped`. UserError if a copied weight is not finite."""
    in_place: set[str] = set()
    slices = hf_slices(model.config)
    parameters = model.weights
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            in_place = _map_weights(model, file, tensors) if mapped else in_place
            for name in tensors.keys():  # noqa: SIM118 (not a dict)
                if name in slices and name not in in_place:
                    parameter, start, end = slices[name]
                    given, target = tensors.get_tensor(name), parameters[parameter][start:end]
                    target.copy_(given)
                    check_finite(target if isinstance(target, Tensor) else given, name, file)
    model.refresh()


def _map_weights(model: Decoder, file: Path, tensors: Any) -> set[str]:
    """Turn a parameter into a view of `file` if the file has all its rows, in the decoder's order and dtype, aligned.

    Return the names of the mapped tensors. The caller must copy all other tensors.
    """
    data = torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8)
    end = 8 + int(data[:8].view(torch.int64))
    bounds: dict[str, tuple[int, int]] = {}
    for name in tensors.offset_keys():
        piece = tensors.get_slice(name)
        if _DTYPES.get(piece.get_dtype()) != model.embed.dtype:
            return set()
        bounds[name] = end, (end := end + math.prod(piece.get_shape()) * model.embed.itemsize)
    parameters, slices, there = dict(model.named_parameters()), hf_slices(model.config), set[str]()
    for parameter, group in groupby(slices, lambda name: slices[name][0]):
        names, target = list(group), parameters[parameter]
        if not all(name in bounds for name in names):
            continue
        begin, end = bounds[names[0]][0], bounds[names[-1]][1]
        adjoin = all(bounds[one][1] == bounds[other][0] for one, other in pairwise(names))
        if adjoin and begin % ALIGNMENT == 0 and end - begin == target.nbytes:
            target.data = data[begin:end].view(target.dtype).view(target.shape)
            there.update(names)
    return there
