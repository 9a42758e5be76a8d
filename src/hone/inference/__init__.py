"""Sampling: KV cache, sampler, and an engine that uses the trainer's parameters."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hone.inference.engine import Engine
    from hone.inference.types import Completion, SamplingParams

_MODULES = {"Completion": "types", "Engine": "engine", "SamplingParams": "types"}
__all__ = ["Completion", "Engine", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
