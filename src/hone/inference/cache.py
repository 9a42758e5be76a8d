"""A KV cache for a batch of rows that decode together. Each prompt is stored once for all its completions.

A decode step computes scores in two products: each prompt's keys with the queries of all rows that continue the prompt,
and the keys of each row's decoded tokens with the row's query. One softmax runs over all scores. Keys and values have
the dtype `Decoder.kv_dtype`; scores and sums are always fp32, because bf16 scores change a bf16 model's logprobs by up
to 0.04.

All rows write their next token to the same column. A row that begins later joins at the current column, and a mask
hides the columns before its first token.

Shapes: B rows, P prompts of at most `width` tokens, K key/value heads, G query heads for each key/value head, H = K G,
Dh head size, T decoded tokens, E groups of R slots (see `GroupLayout`). K comes first, so that rows
and groups are two views of one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hone.model.device import upload

BLOCK = 32
"""Columns in a block of decoded tokens. A single tensor made attention a quarter slower (128 rows x 128 tokens)."""


class GroupLayout:
    """Puts rows that continue the same prompt side by side, in groups with equal numbers of slots.

    A group larger than twice the mean is split, so that small groups need less padding. `prompt_of_group` `[E]` is the
    index of each group's prompt. A padding slot repeats row 0, and its result is not read.
    """

    def __init__(self, prompt_of_row: np.ndarray, device: torch.device) -> None:
        rows = len(prompt_of_row)
        counts = np.bincount(prompt_of_row)
        self.slots = min(int(counts.max()), 2 * rows // int(np.count_nonzero(counts)))
        groups_of_prompt = -(-counts // self.slots)
        self.prompt_of_group = np.repeat(np.arange(len(counts)), groups_of_prompt)

        order = np.argsort(prompt_of_row, kind="stable")
        rank = np.empty_like(order)  # of a row among the rows of its prompt
        rank[order] = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
        slot = (np.cumsum(groups_of_prompt) - groups_of_prompt)[prompt_of_row] * self.slots + rank
        self.group_of_row = slot // self.slots

        self.in_order = len(self.prompt_of_group) * self.slots == rows and bool((np.diff(slot) == 1).all())
        row_of_slot = np.zeros(len(self.prompt_of_group) * self.slots, dtype=np.int64)
        row_of_slot[slot] = np.arange(rows)
        self._slot_of_row, self._row_of_slot = (upload(x, device) for x in (slot, row_of_slot))

    def to_groups(self, x: Tensor, kv_heads: int) -> Tensor:
        """Reorder rows into groups: [K·B, G, …] → [K·E, R·G, …], for K = `kv_heads`."""
        if not self.in_order:
            x = x.unflatten(0, (kv_heads, -1)).index_select(1, self._row_of_slot)
        return x.reshape(kv_heads * len(self.prompt_of_group), -1, x.shape[-1])

    def to_rows(self, x: Tensor, kv_heads: int) -> Tensor:
        """Undo `to_groups`: [K·E, R·G, …] → [K·B, G, …]."""
        slots = len(self.prompt_of_group) * self.slots
        if self.in_order:
            return x.view(kv_heads * slots, -1, x.shape[-1])
        return x.view(kv_heads, slots, -1, x.shape[-1]).index_select(1, self._slot_of_row).flatten(0, 1)


class KVCache:
    """Keys and values of B sequences, and the decoder's attention in a decode step.

    Per layer: the prompts' keys `[K, E, Dh, width]` and values `[K, E, width, Dh]`, and decoded keys and values in
    blocks `[2, K, B, BLOCK, Dh]`. All rows write the next token to `column`. `mask` `[E, 1, width]` is 0 on a prompt's
    tokens, -inf on padding; `began` `[B, T]` is -inf on columns before a row's first token. Both masks are added to the
    scores; a mask of zeros is skipped.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[tuple[Tensor, Tensor]]],
        lengths: list[int],
        prompt_of_row: np.ndarray,
        max_new: int,
    ) -> None:
        """`prompts`: each item has keys and values `[tokens, K, Dh]` by layer, of one prompt or of several end to end.

        `prompt_of_row` `[B]`: index of the prompt that each row continues. A row gets at most `max_new` tokens.
        """
        k = prompts[0][0][0]
        self.width, self.column, self.room = max(lengths), 0, max_new
        self.starts = np.zeros(len(prompt_of_row), dtype=np.int64)  # the column of each row's first token
        real = np.arange(self.width) < np.array(lengths)[:, None]  # [P, width]
        places = upload(np.flatnonzero(real), k.device)
        self.prompts: list[tuple[Tensor, Tensor]] = []
        self.decoded: list[list[_Block]] = [[] for _ in prompts[0]]
        for parts in zip(*prompts, strict=True):
            padded = k.new_zeros(2, len(lengths), self.width, *k.shape[1:])
            for stored, flat in zip(padded.flatten(1, 2), zip(*parts, strict=True), strict=True):
                stored.index_copy_(0, places, torch.cat(flat))
            keys, values = padded[0].permute(2, 0, 3, 1), padded[1].permute(2, 0, 1, 3)
            self.prompts.append((keys.contiguous(), values.contiguous()))
        self.mask = upload(np.where(real, np.float32(0), np.float32(-np.inf)), k.device)[:, None]
        self.padded = not real.all()
        self._lay_out(prompt_of_row)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v `[B, K, Dh]` of one new token per row; attend from q `[B, H, Dh]` to all tokens of the row."""
        # Each call of torch takes time beside the products of a small model, views included.
        blocks, used = self.decoded[layer], self.column % BLOCK + 1
        prompt_keys, prompt_values = self.prompts[layer]
        kv_heads, rows = k.shape[1], k.shape[0]
        if len(blocks) == self.column // BLOCK:  # a step that failed may be repeated, and has its block already
            blocks.append(_Block(k.new_empty(2, kv_heads, rows, BLOCK, k.shape[2])))
        blocks[-1].columns[0][used - 1].copy_(k.transpose(0, 1))
        blocks[-1].columns[1][used - 1].copy_(v.transpose(0, 1))
        keys, values = [block.keys for block in blocks], [block.values for block in blocks]
        keys[-1], values[-1] = keys[-1][:, :used], values[-1][:, :used]

        queries, scale = scaled(q.view(rows, kv_heads, -1, q.shape[-1]).transpose(0, 1))
        queries = queries.view(kv_heads * rows, -1, q.shape[-1])
        to_prompt = product(self.layout.to_groups(queries, kv_heads), prompt_keys.flatten(0, 1))
        if self.padded:
            to_prompt.view(kv_heads, -1, *to_prompt.shape[1:]).add_(self.mask)
        to_prompt = self.layout.to_rows(to_prompt, kv_heads)
        # [K·B, G, width + T]
        scores = torch.cat([to_prompt, *[product(queries, block.mT) for block in keys]], dim=-1)
        if self.joined:
            scores.view(kv_heads, rows, *scores.shape[1:])[..., self.width :] += self.began[:, None, : self.column + 1]
        sizes = [self.width, *[BLOCK] * (len(blocks) - 1), used]
        weights, total = (scores.softmax(-1), None) if scale == 1 else unnormalised(scores.mul_(scale))
        prompt_weights, *block_weights = weights.split(sizes, dim=-1)

        out = product(self.layout.to_groups(prompt_weights, kv_heads), prompt_values.flatten(0, 1))
        out = self.layout.to_rows(out, kv_heads)
        for weights, block in zip(block_weights, values, strict=True):
            out = product(weights, block, plus=out)
        out = out if total is None else out / total
        return out.view(kv_heads, rows, -1, q.shape[-1]).transpose(0, 1).reshape(q.shape).to(q.dtype)

    def moved(self) -> None:
        self.column += 1

    @property
    def rows(self) -> int:
        return len(self.layout.group_of_row)

    @property
    def tokens(self) -> int:
        return self.prompts[0][0].shape[1] * self.width + self.rows * self.room

    def keep(self, rows: np.ndarray) -> None:
        """Remove all rows except `rows`, and the prompts and blocks that no row uses any more."""
        first = int(self.starts[rows].min()) // BLOCK
        index = upload(rows, self.mask.device)
        for layer, blocks in enumerate(self.decoded):
            self.decoded[layer] = [_Block(block.stored.index_select(2, index)) for block in blocks[first:]]
        self.starts = self.starts[rows] - first * BLOCK
        self.column -= first * BLOCK
        self.room -= first * BLOCK
        self._lay_out(self.layout.group_of_row[rows])

    def tokens_joined(self, other: KVCache, max_new: int) -> int:
        prompts = self.prompts[0][0].shape[1] + other.prompts[0][0].shape[1]
        rows = self.rows + other.rows
        return prompts * max(self.width, other.width) + rows * (max(self.column, other.column) + max_new)

    def join(self, other: KVCache, max_new: int) -> None:
        """Append the rows of `other`, with room for `max_new` more tokens in every row."""
        width, column = max(self.width, other.width), max(self.column, other.column)
        both = (self, other)
        self.mask = torch.cat([F.pad(cache.mask, (0, width - cache.width), value=-torch.inf) for cache in both])
        self.padded |= other.padded or self.width != other.width
        self.starts = np.concatenate([cache.starts + column - cache.column for cache in both])
        for layer in range(len(self.prompts)):
            keys = [F.pad(cache.prompts[layer][0], (0, width - cache.width)) for cache in both]
            values = [F.pad(cache.prompts[layer][1], (0, 0, 0, width - cache.width)) for cache in both]
            self.prompts[layer] = torch.cat(keys, dim=1), torch.cat(values, dim=1)
            parts = [_shifted(cache, layer, column) for cache in both]
            self.decoded[layer] = [_Block(torch.cat(blocks, dim=2)) for blocks in zip(*parts, strict=True)]
        groups = len(self.layout.prompt_of_group)
        prompt_of_row = np.concatenate([self.layout.group_of_row, other.layout.group_of_row + groups])
        self.width, self.column, self.room = width, column, column + max_new
        self._lay_out(prompt_of_row)

    def _lay_out(self, prompt_of_row: np.ndarray) -> None:
        """Group the rows; store a prompt for each group. `prompt_of_row`: indices into the currently stored prompts."""
        before = np.arange(self.room) < self.starts[:, None]
        self.joined = before.any()
        self.began = upload(np.where(before, np.float32(-np.inf), np.float32(0)), self.mask.device)
        device, stored = self.prompts[0][0].device, self.prompts[0][0].shape[1]
        self.layout = GroupLayout(prompt_of_row, device)
        if np.array_equal(self.layout.prompt_of_group, np.arange(stored)):
            return
        groups = upload(self.layout.prompt_of_group, device)
        for layer, (keys, values) in enumerate(self.prompts):
            self.prompts[layer] = keys.index_select(1, groups), values.index_select(1, groups)
        self.mask = self.mask.index_select(0, groups)


class _Block:
    """Keys and values of `BLOCK` columns (`stored` `[2, K, B, BLOCK, Dh]`), with views for a decode step."""

    def __init__(self, stored: Tensor) -> None:
        self.stored = stored
        self.columns = [half.unbind(2) for half in stored]
        self.keys, self.values = (half.view(-1, *half.shape[2:]) for half in stored)


def scaled(q: Tensor) -> tuple[Tensor, float]:
    """Return contiguous queries for `product`, and the factor that the caller must apply to the scores."""
    scale = q.shape[-1] ** -0.5
    if q.dtype == torch.float32 or q.device.type == "cpu":
        return torch.mul(q.float(), scale, out=q.new_empty(q.shape, dtype=torch.float32)), 1.0
    return q.contiguous(), scale  # scaled in bf16 they would be rounded


def unnormalised(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the softmax's numerators and their sums. The caller divides at the end, as the trainer's kernel does."""
    weights = (scores - scores.amax(-1, keepdim=True)).exp_()
    return weights, weights.sum(-1, keepdim=True)


def product(x: Tensor, stored: Tensor, plus: Tensor | None = None) -> Tensor:
    """Compute the batched product x · stored (+ plus) in fp32. On a GPU, x is rounded to bf16 if `stored` is bf16."""
    if stored.dtype == torch.float32 or stored.device.type == "cpu":
        stored = stored.float()
        return torch.bmm(x, stored) if plus is None else torch.baddbmm(plus, x, stored)
    out = torch.bmm(x.to(stored.dtype), stored, out_dtype=torch.float32)
    return out if plus is None else out.add_(plus)


def _shifted(cache: KVCache, layer: int, column: int) -> list[Tensor]:
    """Return a layer's blocks, moved right so that the next token is written to `column`. Zeros fill the left."""
    blocks = [block.stored for block in cache.decoded[layer]]
    if cache.column == column:
        return blocks
    values = cache.prompts[layer][1]
    size = -(-column // BLOCK) * BLOCK
    moved = values.new_zeros(2, values.shape[0], cache.rows, size, values.shape[3])
    if blocks:
        moved[:, :, :, column - cache.column : column] = torch.cat(blocks, dim=3)[:, :, :, : cache.column]
    return [block.contiguous() for block in moved.split(BLOCK, dim=3)]
