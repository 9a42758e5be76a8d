"""Causal attention within the segments of a packed batch, as a callable for the decoder.

On a CPU, and for fp32 on a GPU, SDPA gets the segments as right-padded rows, so no real token sees padding. (On a CPU,
a block-diagonal mask is 6 to 18 times slower.) On a GPU, bf16 uses the variable-length (varlen) kernel.

A segment may continue another segment, its parent, as the completions of a group continue their prompt. A child's
queries also see the parent's keys. The parent's keys and values are copied into each child's row, and the gradients of
the copies are summed. All other parts of the decoder compute a shared token once.

Shapes: N query tokens, M key tokens, H query heads, K key/value heads, Dh head size; B rows of L queries and S keys.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel

from hone.model.config import MAX_HEAD
from hone.model.device import upload

# Padding is cheaper than a split if the shortest row of a bucket has at least this share of its longest row's tokens.
MIN_FILL = 0.7
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""SDPA's kernels on a GPU: memory-efficient attention if possible, else plain operations."""


class PackedAttention:
    """Attention within segments, which lie end to end and have `segment_lengths` tokens. Built once per batch.

    `parents[i]` is the index of the segment that segment i continues, or -1. A parent must not have a parent.
    """

    def __init__(self, segment_lengths: Sequence[int], parents: Sequence[int] | None = None) -> None:
        assert segment_lengths and min(segment_lengths) > 0, "a segment has at least one token"
        self.parents = parents or [-1] * len(segment_lengths)
        assert len(self.parents) == len(segment_lengths)
        assert all(self.parents[p] < 0 for p in self.parents if p >= 0), "a parent has no parent itself"
        starts = accumulate(segment_lengths, initial=0)
        self.tokens = [np.arange(start, end) for start, end in pairwise(starts)]
        self.before = [self.tokens[parent] if parent >= 0 else self.tokens[0][:0] for parent in self.parents]
        self.shared, self.equal = max(self.parents) >= 0, min(segment_lengths) == max(segment_lengths)
        self._layout: _SlotLayout | None = None
        self._rows: tuple[Tensor, Tensor, int, int] | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend: q [N, H, Dh], k and v [N, K, Dh] → shape of q. Query head h reads key/value head h // (H / K)."""
        if takes_varlen(q):
            return self._varlen(q, k, v)
        if self.equal and not self.shared:
            return _attend(q, k, v, len(self.tokens))
        if self._layout is None:
            self._layout = _SlotLayout(*self._buckets(), self.shared, q.device)
        return self._layout.from_slots(self._layout.attend(*self._layout.to_slots(q, k, v)))

    def _buckets(self) -> tuple[list[np.ndarray], list[np.ndarray], list[tuple[int, int, int]]]:
        """Return each query row's tokens, each key row's tokens, and (rows, queries, earlier keys) of each bucket.

        A bucket has segments of similar length, with parents of equal length. A shorter segment repeats its last token.
        If the parents are shorter than a third of the longest segment, their queries are computed as well. Attention is
        then purely causal, and only then does SDPA skip masked keys.
        """
        queries, keys, found = list[np.ndarray](), list[np.ndarray](), []
        buckets: list[list[int]] = []
        sizes = [(len(before), len(tokens)) for before, tokens in zip(self.before, self.tokens, strict=True)]
        for i in sorted(range(len(sizes)), key=lambda i: (sizes[i][0], -sizes[i][1])):
            known, longest = sizes[buckets[-1][0]] if buckets else (-1, 0)
            if sizes[i][0] != known or sizes[i][1] < MIN_FILL * longest:
                buckets.append([])
            buckets[-1].append(i)
        for bucket in buckets:
            known, longest = sizes[bucket[0]]
            own = [self.tokens[i][np.minimum(np.arange(longest), sizes[i][1] - 1)] for i in bucket]
            rows = [np.concatenate([self.before[i], row]) for i, row in zip(bucket, own, strict=True)]
            causal = longest > 3 * known
            keys += rows
            queries += rows if causal else own
            found.append((len(bucket), known + longest, 0) if causal else (len(bucket), longest, known))
        return queries, keys, found

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._rows is None:
            keys = [np.concatenate(pair) for pair in zip(self.before, self.tokens, strict=True)]
            self._rows = varlen_rows([len(row) for row in self.tokens], [len(row) for row in keys], q.device)
            if self.shared:
                self._layout = _SlotLayout(self.tokens, keys, [], self.shared, q.device)
        if self._layout is not None:
            k, v = self._layout.keys_to_slots(k), self._layout.keys_to_slots(v)
        return varlen(q, k, v, *self._rows)


def takes_varlen(q: Tensor) -> bool:
    """Return True if `varlen` can be used: bf16 on a GPU, and a head size that is a multiple of 8, up to 256."""
    return q.is_cuda and q.dtype == torch.bfloat16 and q.shape[-1] % 8 == 0 and q.shape[-1] <= MAX_HEAD


def varlen_rows(queries: Sequence[int], keys: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor, int, int]:
    """Return `varlen`'s arguments for rows with these numbers of queries and keys: starts of rows, largest numbers."""
    starts = [upload(np.cumsum([0, *lengths], dtype=np.int32), device) for lengths in (queries, keys)]
    return starts[0], starts[1], max(queries), max(keys)


def varlen(q: Tensor, k: Tensor, v: Tensor, *rows: Any, **options: Any) -> Tensor:
    """Attend within rows that lie end to end (see `varlen_rows`): bf16 q [N, H, Dh], k, v [M, K, Dh] → shape of q.

    A row's last query sees all keys of the row, the second-last query sees all keys but the last, and so on.
    """
    kernel, groups = _varlen_kernel()
    if groups:
        out = kernel(q, k, v, *rows, window_size=(-1, 0), enable_gqa=True, **options)
    else:
        out = kernel(q, *repeat_heads(q, k, v), *rows, window_size=(-1, 0), **options)
    assert isinstance(out, Tensor)
    return out


@cache
def _varlen_kernel() -> tuple[Callable[..., Any], bool]:
    """Return torch's kernel, and True if it can group query heads (not in torch 2.11)."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn, "enable_gqa" in inspect.signature(varlen_attn).parameters


def repeat_heads(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat each head of k and v (dimension 1) for the query heads that read it."""
    group = q.shape[1] // k.shape[1]
    return (k, v) if group == 1 else (k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend: q [B, H, L, Dh], k, v [B, K, S, Dh] → like q. Causal, or by `mask` [L, S] (True: visible; float: added).

    On a CPU, `enable_gqa` is a fifth faster than repeating keys and values. On a GPU, keys and values are repeated: no
    memory-efficient fp32 kernel groups query heads (torch 2.13), and the plain kernel stores L · S scores of each
    layer. cuDNN's kernel would build a plan for each shape, and has reportedly given NaN with masks.
    """
    if q.is_cuda:
        k, v = repeat_heads(q, k, v)
    grouped = q.shape[1] != k.shape[1]
    with sdpa_kernel(BACKENDS) if q.is_cuda else nullcontext():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)


def _attend(q: Tensor, k: Tensor, v: Tensor, rows: int, mask: Tensor | None = None) -> Tensor:
    """Attend within `rows` rows of equal length; all tensors are flat. Causal, or `mask` is added to the scores."""
    dtype = q.dtype
    if q.device.type == "cpu":
        # The CPU's bf16 backward is 9 times slower than fp32's.
        q, k, v = q.float(), k.float(), v.float()
    q, k, v = (x.unflatten(0, (rows, -1)).transpose(1, 2) for x in (q, k, v))
    return sdpa(q, k, v, mask).transpose(1, 2).flatten(0, 1).to(dtype)


class _SlotLayout:
    """The places (slots) of a batch's tokens in its query rows, laid end to end, and in its key rows, laid end to end.

    `query_of_slot`, `key_of_slot`: the token that each slot gets. `slot_of_query`, `slot_of_key` `[N]`: each token's
    first slot. `copies`, if a key may be in several rows: the slots sorted by token, and where each token's slots begin
    in this order. `buckets`: see `PackedAttention._buckets`. `masks`: (queries, earlier keys) → mask.
    """

    def __init__(
        self,
        queries: list[np.ndarray],
        keys: list[np.ndarray],
        buckets: list[tuple[int, int, int]],
        shared: bool,
        device: torch.device,
    ) -> None:
        self.buckets = buckets
        self.masks = {
            (length, before): torch.full((length, before + length), -torch.inf, device=device).triu_(before + 1)
            for _, length, before in buckets
            if before
        }
        query_of_slot, key_of_slot = np.concatenate(queries), np.concatenate(keys)
        by_key = np.argsort(key_of_slot, kind="stable")
        counts = np.bincount(key_of_slot)
        begins = np.cumsum(counts) - counts
        self.query_of_slot, self.key_of_slot = upload(query_of_slot, device), upload(key_of_slot, device)
        self.slot_of_query = upload(np.unique(query_of_slot, return_index=True)[1], device)
        self.slot_of_key = upload(by_key[begins], device)
        self.copies = (upload(by_key, device), upload(begins, device)) if shared else None

    def to_slots(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_slots = _ToSlots.apply(q, self.query_of_slot, self.slot_of_query, None)
        return q_slots, self.keys_to_slots(k), self.keys_to_slots(v)  # pyright: ignore[reportReturnType]

    def keys_to_slots(self, x: Tensor) -> Tensor:
        return _ToSlots.apply(x, self.key_of_slot, self.slot_of_key, self.copies)  # pyright: ignore[reportReturnType]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries = [rows * length for rows, length, _ in self.buckets]
        keys = [rows * (before + length) for rows, length, before in self.buckets]
        split = zip(q.split(queries), k.split(keys), v.split(keys), self.buckets, strict=True)
        outs = [_attend(q, k, v, rows, self.masks.get((length, n))) for q, k, v, (rows, length, n) in split]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def from_slots(self, out: Tensor) -> Tensor:
        return _FromSlots.apply(out, self.slot_of_query)  # pyright: ignore[reportReturnType]


class _ToSlots(torch.autograd.Function):
    """x [N, …] → [slots, …]. Padding slots contribute no gradient: their results are not read, and no real query sees
    their keys. With `copies`, the gradients of a token's copies are summed.
    """

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
    """x [slots, …] → [N, …]. Slots that are not read (padding, further copies of a token) get a gradient of zero."""

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
