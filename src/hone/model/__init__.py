"""The policy: a dense decoder with tokenizer and chat rendering, loaded from and saved to Hugging Face files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hone.model.hf import load_model

__all__ = ["load_model"]


def __getattr__(name: str) -> Any:
    """Import `load_model` on first use, so that environments can read tool calls without torch."""
    if name != "load_model":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hone.model.hf import load_model

    return load_model
