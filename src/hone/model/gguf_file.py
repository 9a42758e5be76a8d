"""Reads the header of a GGUF file, and checks it against the file's tensors before a model is built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.terminal import printable

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Module's name in Hugging Face files → name in GGUF files."""
HEAD = "output.weight"
"""Name of the head's tensor. If a file lacks this tensor, the embedding is the head, as in llama.cpp."""


def gguf_name(name: str) -> str:
    layer, module = re.fullmatch(r"(?:model\.layers\.(\d+)\.)?(.+)", name).groups()  # type: ignore[union-attr]
    module, _, kind = module.rpartition(".")
    return f"{f'blk.{layer}.' if layer else ''}{_NAMES[module]}.{kind}"


def read_shapes(file: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor in a GGUF file, with the dimensions in PyTorch's order.

    Raises UserError if the file ends early, or if the tensors have another number of layers than the header says.
    """
    from gguf import GGUFReader

    class Reader(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: int = 1, **more: Any) -> Any:
            found = super()._get(offset, dtype, count, **more)
            if len(found) < count:
                raise ValueError("it ends too early")
            return found

    try:
        reader = Reader(file)
        family = reader.fields["general.architecture"].contents()
        layers = int(reader.fields[f"{family}.block_count"].contents())
        shapes = {tensor.name: [int(size) for size in reversed(tensor.shape)] for tensor in reader.tensors}
    except KeyError as error:
        raise UserError(f"{file} lacks {printable(str(error.args[0])[:80])}: give a complete GGUF file") from None
    except Exception as error:  # whatever a file that someone else wrote may make of the reader
        what = printable(str(error)[:200])
        raise UserError(f"{file} cannot be read as a model ({what}): give a GGUF of a Llama or Qwen") from None
    numbers = {int(found[1]) for name in shapes if (found := re.match(r"blk\.(\d{1,9})\.", name))}
    if numbers != set(range(min(layers, len(shapes) + 1))):
        there = f"{len(numbers)}" + (f", up to blk.{max(numbers)}" if numbers else "")
        raise UserError(f"{file} has {layers} layers by its header, but tensors for {there}: give a complete GGUF file")
    return shapes
