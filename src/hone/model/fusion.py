"""If `model.compile` is set, compiles each element-wise function to one kernel, with torch.compile.

Only plain functions of tensors are compiled. Matrix products, attention and checkpointing stay as they are. A function
is compiled at its first call for a dtype and device, and again when the number of tokens first changes. So the kernels,
and with them the last bits of results, depend on the first batches of a process. These differ after a resume, so runs
with compiled functions are marked inexact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch.utils._triton import has_triton

from hone.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])
_on = False


def is_compiled() -> bool:
    return _on


def set_compiled(on: bool) -> None:
    global _on
    _on = on


def has_fused_norm(x: torch.Tensor) -> bool:
    """Return True on a GPU, unless functions are compiled: torch then has one kernel for an RMS norm."""
    return x.is_cuda and not _on


def liger(x: torch.Tensor) -> SimpleNamespace | None:
    """Return Liger's modules `rope` and `swiglu`; None on a CPU, without Liger, or if functions are compiled.

    Liger's RMS norm is not used: torch's norm takes no more kernels, and Liger's gradient depends on the GPU's size.
    """
    return _liger() if x.is_cuda and not _on else None


@cache
def _liger() -> SimpleNamespace | None:
    try:
        from liger_kernel.ops import rope, swiglu  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return SimpleNamespace(rope=rope, swiglu=swiglu) if hasattr(swiglu, "swiglu_fused_gate_up_forward") else None


def check_compiler(device: str | torch.device) -> None:
    """Raise UserError if `model.compile` can't work: on a CPU, or without Triton."""
    if torch.device(device).type == "cpu":
        raise UserError("model.compile makes nothing faster on a CPU: leave it out, or use a GPU")
    if not has_triton():
        raise UserError("model.compile needs Triton: pip install triton, or leave model.compile out")


def fused(function: Function) -> Function:
    """Mark a function of tensors for compilation to one kernel. It must have no side effects."""
    compiled: Callable[..., Any] | None = None

    @wraps(function)
    def call(*args: Any) -> Any:
        nonlocal compiled
        if not _on:
            return function(*args)
        if compiled is None:
            compiled = torch.compile(function)
        return compiled(*args)

    return call  # pyright: ignore[reportReturnType]
