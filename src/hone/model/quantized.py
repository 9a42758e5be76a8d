"""Frozen matrices stored in 8 or 4 bits and dequantised for each product.

Each group of 64 neighbours in a row shares a bf16 scale. 8 bits have 127 equal steps on each side of 0. 4 bits have the
16 levels of NF4, which normally distributed weights use about equally (Dettmers et al. 2023, QLoRA, arXiv:2305.14314).
Rows are quantised independently, so q, k and v can be written separately into the rows of a fused matrix.

torchao 0.18 is not used. With one scale a row, its 8 bits have errors of 0.78 % for normally distributed weights,
against 0.59 % here. Single rows can't be written, and 4 bits need another package (mslk).

Levels and scales are bf16 values, so level x scale is exact in fp32, and rounded once in bf16: W is the same in all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hone.errors import UserError
from hone.model.packed import linear

GROUP = 64
"""Number of weights that share a scale. If a row's length isn't a multiple of 64, the number is smaller."""
_NF4 = [
    *(-1.0, -0.6961928010, -0.5250730515, -0.3949174881, -0.2844413817, -0.1847734302, -0.0910500363, 0.0),
    *(0.0795802996, 0.1609302014, 0.2461123019, 0.3379152417, 0.4407098293, 0.5626170039, 0.7229568362, 1.0),
]
LEVELS = torch.tensor(_NF4).bfloat16().float()
_BORDERS = torch.tensor([float(low + high) / 2 for low, high in pairwise(LEVELS)])


@dataclass(frozen=True)
class Quantized:
    """W `[out, in]`. `codes`: int8 `[out, in]`, or uint8 `[out, in / 2]`, two a byte. `scales`: `[out, groups]`."""

    codes: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, out_size: int, in_size: int, base: str) -> Quantized:
        """Allocate a matrix without values. Raises UserError for 4 bits and rows of odd length."""
        if base == "4bit" and in_size % 2:
            raise UserError(f'model.lora.base = "4bit" needs rows of even length, and some have {in_size}: take "8bit"')
        shape, dtype = ((out_size, in_size // 2), torch.uint8) if base == "4bit" else ((out_size, in_size), torch.int8)
        scales = torch.empty(out_size, in_size // math.gcd(in_size, GROUP), dtype=torch.bfloat16)
        return cls(torch.empty(shape, dtype=dtype), scales)

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = self.codes.shape
        return rows, columns * (2 if self.codes.dtype == torch.uint8 else 1)

    def __getitem__(self, rows: slice) -> Quantized:
        return Quantized(self.codes[rows], self.scales[rows])

    @torch.no_grad()
    def copy_(self, weight: Tensor) -> None:
        """Quantise `weight` (of the same shape) into this matrix, each value to the nearest level."""
        groups = weight.to(self.codes.device, torch.float32).unflatten(1, (self.scales.shape[1], -1))
        four, most = self.codes.dtype == torch.uint8, groups.abs().amax(2)
        self.scales.copy_(most if four else most / 127)
        scaled = (groups / self.scales.float().clamp_min(torch.finfo().tiny)[..., None]).flatten(1)
        if not four:
            self.codes.copy_(scaled.round().clamp_(-127, 127))
            return
        codes = torch.bucketize(scaled, _BORDERS.to(scaled.device), out_int32=True).to(torch.uint8)
        self.codes.copy_(16 * codes[:, ::2] + codes[:, 1::2])

    @torch.no_grad()
    def dequantize(self, dtype: torch.dtype) -> Tensor:
        if self.codes.dtype == torch.uint8:
            # One integer for two values: on a CPU that is 20 times as fast as to index the table `[256, 2]` of them.
            pairs = _level_pairs(self.codes.device, dtype)
            values = pairs.index_select(0, self.codes.flatten().int()).view(dtype).view(self.shape)
        else:
            values = self.codes.to(dtype)
        return values.unflatten(1, (self.scales.shape[1], -1)).mul_(self.scales[..., None].to(dtype)).flatten(1)

    def product(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ in the dtype of x. The backward pass dequantises W again, so W takes no memory in between."""
        return _Product.apply(x, self)  # pyright: ignore[reportReturnType]


@cache
def _level_pairs(device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a table `[256]` that maps a byte to the levels of its two codes, joined to one integer."""
    with torch.inference_mode(False):
        first, second = torch.meshgrid(LEVELS, LEVELS, indexing="ij")
        pairs = torch.stack([first.flatten(), second.flatten()], dim=1).to(device, dtype)
        return pairs.view(torch.int32 if dtype == torch.bfloat16 else torch.int64).flatten()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Quantized) -> Tensor:
        ctx.weight = weight
        return linear(x, weight.dequantize(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return linear(grad, ctx.weight.dequantize(grad.dtype).T), None
