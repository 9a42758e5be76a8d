"""The policy: a dense decoder with Hugging Face files in and out, its tokenizer and its chat rendering.

Nothing is imported before it is used: reading tool calls, as environments do, needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hone.model.attention import PackedAttention
    from hone.model.config import DecoderConfig
    from hone.model.decoder import Decoder
    from hone.model.hf import load_model, save_model

_MODULES = {
    "PackedAttention": "attention",
    "DecoderConfig": "config",
    "Decoder": "decoder",
    "load_model": "hf",
    "save_model": "hf",
}
__all__ = ["Decoder", "DecoderConfig", "PackedAttention", "load_model", "save_model"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
