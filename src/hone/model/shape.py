"""Architectures of models by name. Well-known models are listed here, so that `plan` needs no network for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.errors import UserError, first_line
from hone.model.config import DecoderConfig
from hone.model.files import TINY, is_hub_id

if TYPE_CHECKING:
    from hone.config.shared import InitConfig


def shape_of(model: str | Path, init: InitConfig | None = None, implementation: str = "auto") -> DecoderConfig:
    """Return the architecture of a folder, hub id or `hone/tiny`. UserError if unknown, unfetchable or unsupported."""
    name, folder = str(model), Path(model)
    if name == TINY:
        from hone.model.presets import tiny_config

        return tiny_config(init)
    if not folder.is_dir():
        if shape := known(name):
            return shape
        if not is_hub_id(name):
            raise UserError(f"{name} is neither a model folder nor a hub id: give one of them")
        from huggingface_hub import hf_hub_download

        try:
            folder = Path(hf_hub_download(name, "config.json", etag_timeout=3)).parent
        except Exception as error:  # offline, no such model, no permission
            raise UserError(f"the config of {name} can't be fetched from the hub ({first_line(error)})") from error
    from hone.model.hf import read_config

    return read_config(folder, implementation)


def known(name: str) -> DecoderConfig | None:
    """Return a well-known model's architecture, else None. The hub id may end in `-Instruct` or `-Base`."""
    key = re.sub(r"(?<=qwen2\.5)-(math|coder)", "", name.split("/")[-1].lower())
    return KNOWN.get(re.sub(r"-(instruct|base|reverse-text-sft|it)$", "", key))


_SIZES = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "vocab_size")
_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2.5": {"family": "qwen2", "qkv_bias": True, "max_position_embeddings": 32768},
    "qwen3": {"family": "qwen3", "qk_norm": True, "max_position_embeddings": 40960},
    "llama": {"family": "llama", "max_position_embeddings": 131_072},
    "smollm2": {"family": "llama", "max_position_embeddings": 8192},
}
_UNTIED = ("qwen2.5-7b", "qwen3-8b", "llama-3.1-8b", "llama-3.1-70b")
_TABLE = {
    "qwen2.5-0.5b": (24, 896, 14, 2, 64, 4864, 151936),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 128, 8960, 151936),
    "qwen2.5-3b": (36, 2048, 16, 2, 128, 11008, 151936),
    "qwen2.5-7b": (28, 3584, 28, 4, 128, 18944, 152064),
    "qwen3-0.6b": (28, 1024, 16, 8, 128, 3072, 151936),
    "qwen3-1.7b": (28, 2048, 16, 8, 128, 6144, 151936),
    "qwen3-4b": (36, 2560, 32, 8, 128, 9728, 151936),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12288, 151936),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256),
    "llama-3.2-3b": (28, 3072, 24, 8, 128, 8192, 128256),
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 14336, 128256),
    "llama-3.1-70b": (80, 8192, 64, 8, 128, 28672, 128256),
    "smollm2-135m": (30, 576, 9, 3, 64, 1536, 49152),
    "smollm2-360m": (32, 960, 15, 5, 64, 2560, 49152),
    "smollm2-1.7b": (24, 2048, 32, 32, 64, 8192, 49152),
}
KNOWN = {
    name: DecoderConfig(
        **dict(zip(_SIZES, sizes, strict=True)),
        **_FAMILIES[name.split("-")[0]],
        tie_word_embeddings=name not in _UNTIED,
    )
    for name, sizes in _TABLE.items()
}
"""Architectures by the base model's name, in lower case and without the owner."""
