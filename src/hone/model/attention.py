"""Causal attention within each segment of a packed batch, behind one callable that the decoder takes.

On a CPU (and for fp32 on a GPU) segments become right-padded rows, attended to by SDPA with `is_causal`: right padding
needs no mask, for a real token never sees what follows it, and what padding slots compute is dropped. Segments of
equal length need no padding and no copy. (On a CPU a block-diagonal mask is 6 to 18 times slower; SDPA's own grouping
of query heads is a fifth faster than repeating keys and values.) Half precision on a GPU takes the kernel for segments
of any length.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

# A bucket whose shortest row has at least this share of its longest one's tokens is cheaper to pad than to split.
MIN_FILL = 0.7


class PackedAttention:
    """Attention over segments laid end to end, `segment_lengths[i]` tokens each. Built once a batch, for all layers."""

    def __init__(self, segment_lengths: list[int]) -> None:
        assert segment_lengths and min(segment_lengths) > 0, "a segment has at least one token"
        self.segment_lengths = list(segment_lengths)
        self.max_length = max(segment_lengths)
        self.equal = min(segment_lengths) == self.max_length
        self._layout: _SlotLayout | None = None
        self._cumulative: Tensor | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [N, H, Dh], k and v [N, K, Dh] → [N, H, Dh]; query head h reads key/value head h // (H / K)."""
        if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16):
            return self._varlen(q, k, v)
        if self.equal:
            return _attend(q, k, v, len(self.segment_lengths), self.max_length)
        if self._layout is None:
            self._layout = _SlotLayout(self.segment_lengths, q.device)
        return self._layout.attend(q, k, v)

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        if self._cumulative is None:
            starts = list(accumulate(self.segment_lengths, initial=0))
            self._cumulative = torch.tensor(starts, dtype=torch.int32, device=q.device)
        ends, longest = self._cumulative, self.max_length
        out = varlen_attn(q, k, v, ends, ends, longest, longest, window_size=(-1, 0), enable_gqa=True)
        assert isinstance(out, Tensor)
        return out


def _attend(q: Tensor, k: Tensor, v: Tensor, rows: int, length: int) -> Tensor:
    """Causal attention of `rows` rows of `length` tokens, given and returned flat: [rows · length, heads, Dh]."""
    dtype = q.dtype
    if q.device.type == "cpu":
        # The CPU's bf16 backward is 9 times slower than fp32's.
        q, k, v = q.float(), k.float(), v.float()
    q, k, v = (x.unflatten(0, (rows, length)).transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(0, 1).to(dtype)


class _SlotLayout:
    """Where each token of a batch of unequal segments lies in the right-padded rows of a few buckets.

    `token_of_slot` [slots]: the token copied into each slot, a padding slot repeating the last token of its row.
    `slot_of_token` [N]: the slot that a token lies in. `buckets`: (rows, length) of each bucket, in order of its slots.
    """

    def __init__(self, segment_lengths: list[int], device: torch.device) -> None:
        starts = list(accumulate(segment_lengths, initial=0))
        slot_of_token = np.empty(starts[-1], dtype=np.int64)
        token_of_slot: list[np.ndarray] = []
        self.buckets: list[tuple[int, int]] = []
        base = 0
        for segments in _bucket_by_length(segment_lengths):
            length = segment_lengths[segments[0]]
            self.buckets.append((len(segments), length))
            for segment in segments:
                start, real = starts[segment], segment_lengths[segment]
                token_of_slot.append(start + np.minimum(np.arange(length), real - 1))
                slot_of_token[start : start + real] = base + np.arange(real)
                base += length
        self.token_of_slot = torch.from_numpy(np.concatenate(token_of_slot)).to(device)
        self.slot_of_token = torch.from_numpy(slot_of_token).to(device)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sizes = [rows * length for rows, length in self.buckets]
        slotted = [_ToSlots.apply(x, self.token_of_slot, self.slot_of_token).split(sizes) for x in (q, k, v)]  # pyright: ignore[reportAttributeAccessIssue]
        outs = [_attend(*qkv, *bucket) for *qkv, bucket in zip(*slotted, self.buckets, strict=True)]
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        return _FromSlots.apply(out, self.slot_of_token)  # pyright: ignore[reportReturnType]


def _bucket_by_length(segment_lengths: list[int]) -> list[list[int]]:
    """Segment indices grouped by similar length, longest first, so that no row is filled to less than `MIN_FILL`."""
    order = sorted(range(len(segment_lengths)), key=lambda i: -segment_lengths[i])
    buckets: list[list[int]] = []
    for i in order:
        if not buckets or segment_lengths[i] < MIN_FILL * segment_lengths[buckets[-1][0]]:
            buckets.append([])
        buckets[-1].append(i)
    return buckets


class _ToSlots(torch.autograd.Function):
    """x [N, …] → [slots, …]. Its gradient is a gather too, not a sum: padding slots receive no gradient, as nothing
    reads what their queries compute, and no real query sees their keys."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token_of_slot: Tensor, slot_of_token: Tensor) -> Tensor:
        ctx.save_for_backward(slot_of_token)
        return x.index_select(0, token_of_slot)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class _FromSlots(torch.autograd.Function):
    """x [slots, …] → [N, …]; the gradient of a padding slot is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slot_of_token: Tensor) -> Tensor:
        ctx.save_for_backward(slot_of_token)
        ctx.num_slots = x.shape[0]
        return x.index_select(0, slot_of_token)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad_slots = grad.new_zeros(ctx.num_slots, *grad.shape[1:])
        return grad_slots.index_copy_(0, ctx.saved_tensors[0], grad), None
