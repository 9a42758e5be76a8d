"""Maps tensors of Hugging Face files to rows of the decoder's fused parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hone.errors import UserError
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.terminal import printable

# Files of other tools carry these beside the weights, from which they follow.
_DERIVED = re.compile(r"rotary_emb\.inv_freq$")


def hf_slices(config: DecoderConfig) -> dict[str, tuple[str, int, int | None]]:
    """Map Hugging Face name → (decoder's parameter, first row, end row or None), in file order."""
    if config.implementation == "transformers":
        from hone.model.foreign import NET, TransformersConfig

        assert isinstance(config, TransformersConfig)
        return {name: (f"{NET}.{name}", 0, None) for name in config.shapes}
    c = config
    slices: dict[str, tuple[str, int, int | None]] = {"model.embed_tokens.weight": ("embed", 0, None)}
    for i in range(c.num_layers):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        slices[f"{theirs}.input_layernorm.weight"] = (f"{ours}.input_norm.weight", 0, None)
        q, k, f = c.q_size, c.q_size + c.kv_size, c.intermediate_size
        rows = [("q_proj", 0, q), ("k_proj", q, k), ("v_proj", k, k + c.kv_size)]
        for part in ["weight", "bias"] if c.qkv_bias else ["weight"]:
            for name, start, end in rows:
                slices[f"{theirs}.self_attn.{name}.{part}"] = (f"{ours}.qkv_proj.{part}", start, end)
        for part in ["weight", "bias"] if c.o_bias else ["weight"]:
            slices[f"{theirs}.self_attn.o_proj.{part}"] = (f"{ours}.o_proj.{part}", 0, None)
        for name in ["q_norm", "k_norm"] if c.qk_norm else []:
            slices[f"{theirs}.self_attn.{name}.weight"] = (f"{ours}.{name}", 0, None)
        slices[f"{theirs}.post_attention_layernorm.weight"] = (f"{ours}.post_norm.weight", 0, None)
        for part in ["weight", "bias"] if c.mlp_bias else ["weight"]:
            slices[f"{theirs}.mlp.gate_proj.{part}"] = (f"{ours}.gate_up_proj.{part}", 0, f)
            slices[f"{theirs}.mlp.up_proj.{part}"] = (f"{ours}.gate_up_proj.{part}", f, 2 * f)
            slices[f"{theirs}.mlp.down_proj.{part}"] = (f"{ours}.down_proj.{part}", 0, None)
    slices["model.norm.weight"] = ("norm.weight", 0, None)
    if not c.tie_word_embeddings:
        slices["lm_head.weight"] = ("lm_head", 0, None)
    return slices


def check_tensors(
    config: DecoderConfig,
    found: Mapping[str, Sequence[int]],
    source: str,
    config_source: str,
    names: Callable[[str], str] = str,
) -> None:
    """Raise UserError unless `found` (tensor → shape) has the names and shapes that `config` needs.

    `names` maps a tensor's Hugging Face name to the name in `source`.
    """
    size = sum(math.prod(shape) for shape in found.values())
    if config.num_layers > len(found) or config.parameters > 64 * (size + 1):
        raise UserError(
            f"{source} do not fit {config_source}: {config.num_layers:,} layers with {config.parameters:,} weights "
            f"are expected, {len(found):,} tensors with {size:,} weights were found; check that both come from the "
            "same model"
        )
    with torch.device("meta"):
        parameters = Decoder(config).weights
    slices = hf_slices(config)
    wanted = {names(name): list(parameters[p][start:end].shape) for name, (p, start, end) in slices.items()}
    tied = {names("lm_head.weight")} if config.tie_word_embeddings else set()
    unknown = [name for name in found if name not in wanted and name not in tied and not _DERIVED.search(name)]
    shapes = {name: list(found[name]) for name in wanted if name in found}
    misshapen = [f"{name} is {shape}, not {wanted[name]}" for name, shape in shapes.items() if shape != wanted[name]]
    lacking = [name for name in wanted if name not in found]
    for problem, some in (("lack", lacking), ("have unknown", unknown), ("have misshapen", misshapen)):
        if some:
            more = f" and {len(some) - 3} more" if len(some) > 3 else ""
            listed = ", ".join(printable(name[:200]) for name in some[:3])
            raise UserError(
                f"{source} do not fit {config_source}: they {problem} {listed}{more}; check that both come from the "
                "same model"
            )


def check_finite(tensor: Tensor, name: str, file: Path) -> None:
    """Raise UserError if values of a tensor are NaN or infinite, as values too large for the dtype become."""
    if not tensor.sum().float().isfinite() and (count := int((~tensor.isfinite()).sum())):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UserError(f"{count:,} values of {printable(name)} are not finite in {kind}: restore {file}")
