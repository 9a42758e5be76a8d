"""Causal attention within each segment of a packed batch, behind one callable that the decoder takes.

On a CPU (and for fp32 on a GPU) segments become right-padded rows, attended to by SDPA with `is_causal`: a real token
never sees the padding behind it, so no mask is needed. (A block-diagonal mask is 6 to 18 times slower on a CPU.) bf16
on a GPU takes the kernel for segments of any length; fp32 has none.

A segment may continue another, its parent: a completion continues the prompt that its group shares. Its row holds both,
so the parent's tokens are copied into several rows. Outputs are read from a token's first row, and the gradients of
keys and values are summed over all rows. Attention costs what it did without sharing; the rest of the decoder computes
a shared token once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from hone.model.device import upload

# Padding is cheaper than a split if the shortest row of a bucket has at least this share of its longest row's tokens.
MIN_FILL = 0.7


class PackedAttention:
    """Attention over segments laid end to end, `segment_lengths[i]` tokens each. Built once a batch, for all layers.

    `parents[i]` is the segment with the tokens before those of segment i, or -1; a parent has no parent itself.
    """

    def __init__(self, segment_lengths: Sequence[int], parents: Sequence[int] | None = None) -> None:
        assert segment_lengths and min(segment_lengths) > 0, "a segment has at least one token"
        self.rows, self.shared = _rows(segment_lengths, parents or [-1] * len(segment_lengths))
        self.row_lengths = [len(row) for row in self.rows]
        self.max_length = max(self.row_lengths)
        self.equal = min(self.row_lengths) == self.max_length
        self._layout: _SlotLayout | None = None
        self._cumulative: Tensor | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend: q [N, H, Dh], k and v [N, K, Dh] → like q; query head h reads key/value head h // (H / K)."""
        if q.is_cuda and q.dtype == torch.bfloat16 and q.shape[-1] % 8 == 0:  # the kernel takes no other head size
            return self._varlen(q, k, v)
        if self.equal and not self.shared:
            return _attend(q, k, v, len(self.rows), self.max_length)
        if self._layout is None:
            self._layout = _SlotLayout(self.rows, _bucket_by_length(self.row_lengths), self.shared, q.device)
        return self._layout.from_slots(self._layout.attend(*self._layout.to_slots(q, k, v)))

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._cumulative is None:
            starts = list(accumulate(self.row_lengths, initial=0))
            self._cumulative = upload(np.array(starts, dtype=np.int32), q.device)
            if self.shared:
                each = [[i] for i in range(len(self.rows))]
                self._layout = _SlotLayout(self.rows, each, self.shared, q.device)
        if self._layout is None:
            return varlen(q, k, v, self._cumulative, self.max_length)
        return self._layout.from_slots(varlen(*self._layout.to_slots(q, k, v), self._cumulative, self.max_length))


def varlen(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> Tensor:
    """Attend causally in rows laid end to end, the last ending at `starts[-1]`: bf16 q [N, H, Dh], k, v [N, K, Dh]."""
    kernel, groups = _varlen_kernel()
    if groups:
        out = kernel(q, k, v, starts, starts, longest, longest, window_size=(-1, 0), enable_gqa=True)
    else:
        k, v = repeat_heads(q, k, v)
        out = kernel(q, k, v, starts, starts, longest, longest, window_size=(-1, 0))
    assert isinstance(out, Tensor)
    return out


@cache
def _varlen_kernel() -> tuple[Callable[..., Any], bool]:
    """Return torch's kernel, and True if it groups query heads (torch 2.11's does not)."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn, "enable_gqa" in inspect.signature(varlen_attn).parameters


def repeat_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return k and v with as many heads (dimension 1) as q, each repeated for the query heads that read it."""
    group = q.shape[1] // k.shape[1]
    return (k, v) if group == 1 else (k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend: q [B, H, L, Dh], k and v [B, K, S, Dh] → like q. Causally, or to what `mask` [L, S] (bool) lets see.

    A CPU groups query heads a fifth faster than it repeats keys and values. On a GPU fp32 has no memory-efficient
    kernel that groups them (torch 2.13), and the plain one keeps L · S scores of each layer for the gradient.
    """
    if q.is_cuda:
        k, v = repeat_heads(q, k, v)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)


def _rows(segment_lengths: Sequence[int], parents: Sequence[int]) -> tuple[list[np.ndarray], bool]:
    """Return the tokens of each row (a segment that is nobody's parent, behind its own) and if any is shared."""
    assert len(parents) == len(segment_lengths)
    starts = list(accumulate(segment_lengths, initial=0))
    tokens = [np.arange(start, end) for start, end in pairwise(starts)]
    shared = {parent for parent in parents if parent >= 0}
    assert all(parents[parent] < 0 for parent in shared), "a parent has no parent itself"
    rows = [
        tokens[i] if parent < 0 else np.concatenate([tokens[parent], tokens[i]])
        for i, parent in enumerate(parents)
        if i not in shared
    ]
    return rows, bool(shared)


def _attend(q: Tensor, k: Tensor, v: Tensor, rows: int, length: int) -> Tensor:
    """Attend causally in `rows` rows of `length` tokens, given and returned flat: [rows · length, heads, Dh]."""
    dtype = q.dtype
    if q.device.type == "cpu":
        # The CPU's bf16 backward is 9 times slower than fp32's.
        q, k, v = q.float(), k.float(), v.float()
    q, k, v = (x.unflatten(0, (rows, length)).transpose(1, 2) for x in (q, k, v))
    return sdpa(q, k, v).transpose(1, 2).flatten(0, 1).to(dtype)


class _SlotLayout:
    """Place of each token of a batch in the rows of a few buckets, each row right-padded to its bucket's longest.

    `token_of_slot` [slots]: the token copied into each slot, a padding slot repeating the last token of its row.
    `slot_of_token` [N]: the first slot that a token lies in. `copies`: where a token may lie in several rows, the slots
    sorted by their token, and where in that list each token's slots begin. `buckets`: (rows, length) of each bucket.
    """

    def __init__(self, rows: list[np.ndarray], buckets: list[list[int]], shared: bool, device: torch.device) -> None:
        slots: list[np.ndarray] = []
        self.buckets: list[tuple[int, int]] = []
        for bucket in buckets:
            length = max(len(rows[i]) for i in bucket)
            self.buckets.append((len(bucket), length))
            slots += [rows[i][np.minimum(np.arange(length), len(rows[i]) - 1)] for i in bucket]
        token_of_slot = np.concatenate(slots)
        by_token = np.argsort(token_of_slot, kind="stable")
        counts = np.bincount(token_of_slot)
        begins = np.cumsum(counts) - counts
        self.token_of_slot = upload(token_of_slot, device)
        self.slot_of_token = upload(by_token[begins], device)
        self.copies = (upload(by_token, device), upload(begins, device)) if shared else None

    def to_slots(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_slots = _ToSlots.apply(q, self.token_of_slot, self.slot_of_token, None)
        k_slots, v_slots = (_ToSlots.apply(x, self.token_of_slot, self.slot_of_token, self.copies) for x in (k, v))
        return q_slots, k_slots, v_slots  # pyright: ignore[reportReturnType]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        sizes = [rows * length for rows, length in self.buckets]
        split = zip(q.split(sizes), k.split(sizes), v.split(sizes), self.buckets, strict=True)
        outs = [_attend(q, k, v, *bucket) for q, k, v, bucket in split]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def from_slots(self, out: Tensor) -> Tensor:
        return _FromSlots.apply(out, self.slot_of_token)  # pyright: ignore[reportReturnType]


def _bucket_by_length(segment_lengths: list[int]) -> list[list[int]]:
    order = sorted(range(len(segment_lengths)), key=lambda i: -segment_lengths[i])
    buckets: list[list[int]] = []
    for i in order:
        if not buckets or segment_lengths[i] < MIN_FILL * segment_lengths[buckets[-1][0]]:
            buckets.append([])
        buckets[-1].append(i)
    return buckets


class _ToSlots(torch.autograd.Function):
    """x [N, …] → [slots, …]. Its gradient is a gather too unless tokens have `copies`: padding slots receive no
    gradient, as nothing reads what their queries compute, and no real query sees their keys."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, token_of_slot: Tensor, slot_of_token: Tensor, copies: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        ctx.indices = slot_of_token, copies
        return x.index_select(0, token_of_slot)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        slot_of_token, copies = ctx.indices
        if copies is None:
            return grad.index_select(0, slot_of_token), None, None, None
        # Sums the copies in a fixed order, and three times as fast as index_add.
        summed = F.embedding_bag(copies[0], grad.flatten(1), copies[1], mode="sum")
        return summed.unflatten(1, grad.shape[1:]), None, None, None


class _FromSlots(torch.autograd.Function):
    """x [slots, …] → [N, …]; the gradient of a slot that is not read, padding or a further copy, is zero."""

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
