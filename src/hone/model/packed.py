"""Products on a CPU with weights in oneDNN's layout, for the head and for all products without a gradient.

The plain product converts the weight to oneDNN's layout at each call, which takes most of the time for few rows. On one
core, a packed product of 16 rows took 0.72 (bf16) or 0.56 (fp32) of the plain product's time. In bf16, both give the
same bits; in fp32, the plain product uses another library.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from hone.hardware import MIN_FP32_SIZE, padded_rows


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x Wᵀ + b, on any device and in any dtype.

    A CPU without AVX-512 has no kernels for bf16, only plain loops that take 7 to 40 times as long as fp32 products. On
    such a CPU, bf16 operands are multiplied in fp32, and the result is rounded to bf16, as bf16 kernels do.
    """
    if x.dtype == torch.bfloat16 and not multiplies_bf16_fast(x):
        return _LinearInFP32.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
    return F.linear(x, weight, bias)


def multiplies_bf16_fast(x: Tensor) -> bool:
    return x.device.type != "cpu" or _packs(torch.bfloat16)


class _LinearInFP32(torch.autograd.Function):
    """x Wᵀ + b of bf16 tensors, computed in fp32. Stores the bf16 tensors for the backward pass, to save memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).bfloat16()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad_x = linear(grad, weight.T) if ctx.needs_input_grad[0] else None
        grad_weight = linear(grad.T, x.T) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


class PackedWeight:
    """The packed form of one weight `[out, in]`, made when it is first used.

    It is made again if PyTorch's operations changed the weight. After a fused optimiser's change, call `forget`.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self._source: Tensor | None = None
        self._key: tuple[int, int] | None = None
        self._packed: Tensor | None = None

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute x Wᵀ + b `[rows, out]` without a gradient. Uses the plain product if packing isn't faster."""
        if not self.prepare(weight):
            return linear(x, weight, bias)
        rows = padded_rows(x.shape[0])
        padded = x if rows == x.shape[0] else F.pad(x, (0, 0, 0, rows - x.shape[0]))
        return torch.ops.mkldnn._linear_pointwise(padded, self._packed, bias, "none", [], "")[: x.shape[0]]

    def prepare(self, weight: Tensor) -> bool:
        """Pack the weight if it isn't packed yet. Return False if packing is off or isn't faster."""
        if not self.enabled or weight.device.type != "cpu" or not _packs(weight.dtype):
            return False
        if weight.dtype == torch.float32 and weight.numel() < MIN_FP32_SIZE:
            return False
        key = weight.data_ptr(), weight._version  # another one if the weight was replaced or written to
        if self._key != key or self._source is not weight:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 16)
            self._key, self._source = key, weight
        return True

    def forget(self) -> None:
        self._packed = self._source = self._key = None

    def __deepcopy__(self, memo: dict) -> PackedWeight:
        return PackedWeight(self.enabled)


@functools.cache
def _packs(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
