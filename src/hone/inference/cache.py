"""A static KV cache for a batch that decodes in step, in which each prompt is stored once for all its completions.

A decode step attends in two products: the queries of all rows that continue a prompt to that prompt's keys, and each
row's own query to the tokens that it has decoded itself; one softmax runs over both. All rows have decoded equally many
tokens, so they write to the same column and only a short prompt's padding needs a mask. Keys, values and arithmetic are
fp32 whatever the model's dtype: with bf16 scores a bf16 model's logprobs are up to 0.04 from its trainer's.

Rows that began later join by standing at the same column as the others, with a mask over the columns before their first
token; so there is one write and one width for all, and a batch that began together has no mask.

Shapes: B rows, P prompts of at most `width` tokens, K key/value heads, G query heads that share one, Dh head size,
T decoded tokens; E groups of R slots (see `GroupLayout`). The key/value head comes first, so that rows and groups of
rows are two views of one tensor.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hone.model.config import DecoderConfig


def kv_bytes_per_token(config: DecoderConfig) -> int:
    """Bytes of keys and values for one token in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * torch.float32.itemsize


class GroupLayout:
    """Lays rows that continue the same prompt side by side, in groups of equally many slots.

    A group larger than twice the mean is cut, so that one large group among many small ones doesn't pad all of them:
    there are at most three times as many slots as rows. `prompt_of_group` `[E]`: a cut or dropped prompt occurs several
    times or never. A padding slot repeats row 0, and nothing reads it.
    """

    def __init__(self, prompt_of_row: np.ndarray, device: torch.device) -> None:
        rows = len(prompt_of_row)
        counts = np.bincount(prompt_of_row)
        self.slots = min(int(counts.max()), 2 * rows // int(np.count_nonzero(counts)))
        groups_of_prompt = -(-counts // self.slots)
        self.prompt_of_group = np.repeat(np.arange(len(counts)), groups_of_prompt)

        order = np.argsort(prompt_of_row, kind="stable")
        rank = np.empty_like(order)  # of a row among those of its prompt
        rank[order] = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
        slot = (np.cumsum(groups_of_prompt) - groups_of_prompt)[prompt_of_row] * self.slots + rank
        self.group_of_row = slot // self.slots

        self.in_order = len(self.prompt_of_group) * self.slots == rows and bool((np.diff(slot) == 1).all())
        row_of_slot = np.zeros(len(self.prompt_of_group) * self.slots, dtype=np.int64)
        row_of_slot[slot] = np.arange(rows)
        self._slot_of_row, self._row_of_slot = (torch.from_numpy(x).to(device) for x in (slot, row_of_slot))

    def to_groups(self, x: Tensor) -> Tensor:
        """[K, B, G, …] → [K·E, R·G, …]."""
        x = x if self.in_order else x.index_select(1, self._row_of_slot)
        return x.reshape(x.shape[0] * len(self.prompt_of_group), -1, x.shape[-1])

    def to_rows(self, x: Tensor, kv_heads: int) -> Tensor:
        """[K·E, R·G, …] → [K, B, G, …]."""
        x = x.view(kv_heads, len(self.prompt_of_group) * self.slots, -1, x.shape[-1])
        return x if self.in_order else x.index_select(1, self._slot_of_row)


class KVCache:
    """Keys and values of B sequences; acts as the decoder's attention in a decode step.

    Per layer: the prompts' keys `[K, E, Dh, width]` and values `[K, E, width, Dh]`, and what each row has decoded,
    `[2, K, B, T, Dh]`. `column` is where the next token goes, the same for all rows: a row that began later has its
    first token further right. `mask` `[E, 1, width]` is 0 on a prompt's tokens, -inf on the padding behind a short one;
    `began` `[B, T]` is -inf on the columns before a row's first. Each is None where it would be all 0.
    """

    def __init__(
        self, layers: list[tuple[Tensor, Tensor]], lengths: list[int], prompt_of_row: np.ndarray, max_new: int
    ) -> None:
        """`layers`: keys and values `[N, K, Dh]` of all prompts end to end. `prompt_of_row` `[B]`: the prompt that each
        row continues, by at most `max_new` tokens.
        """
        k = layers[0][0]
        self.width, self.column = max(lengths), 0
        real = torch.arange(self.width, device=k.device) < torch.tensor(lengths, device=k.device)[:, None]  # [P, width]
        self.prompts, self.decoded = [], []
        for layer in layers:
            padded = k.new_zeros(2, len(lengths), self.width, *k.shape[1:], dtype=torch.float32)
            padded[:, real] = torch.stack(layer).float()
            keys, values = padded[0].permute(2, 0, 3, 1), padded[1].permute(2, 0, 1, 3)
            self.prompts.append((keys.contiguous(), values.contiguous()))
            self.decoded.append(padded.new_empty(2, k.shape[1], len(prompt_of_row), max_new, k.shape[2]))
        self.mask = None
        if min(lengths) < self.width:
            self.mask = torch.zeros_like(real, dtype=torch.float32).masked_fill(~real, float("-inf"))[:, None]
        self.began: Tensor | None = None
        self._lay_out(prompt_of_row)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q `[B, H, Dh]`, k and v `[B, K, Dh]` of one new token per row; stores k, v and attends to all so far."""
        decoded = self.decoded[layer]
        decoded[0, :, :, self.column] = k.transpose(0, 1)
        decoded[1, :, :, self.column] = v.transpose(0, 1)
        keys, values = decoded[:, :, :, : self.column + 1].flatten(1, 2)  # [K·B, T, Dh]
        prompt_keys, prompt_values = (x.flatten(0, 1) for x in self.prompts[layer])

        scaled = q.float() * q.shape[-1] ** -0.5
        queries = scaled.unflatten(1, (k.shape[1], -1)).transpose(0, 1).contiguous()  # [K, B, G, Dh]
        to_prompt = torch.bmm(self.layout.to_groups(queries), prompt_keys)
        if self.mask is not None:
            to_prompt.view(k.shape[1], -1, *to_prompt.shape[1:]).add_(self.mask)
        to_decoded = torch.bmm(queries.flatten(0, 1), keys.transpose(1, 2)).unflatten(0, queries.shape[:2])
        if self.began is not None:
            to_decoded.add_(self.began[:, None, : self.column + 1])
        scores = torch.cat([self.layout.to_rows(to_prompt, k.shape[1]), to_decoded], dim=-1)
        probs = scores.softmax(-1)

        of_prompt = torch.bmm(self.layout.to_groups(probs[..., : self.width]), prompt_values)
        of_decoded = torch.bmm(probs[..., self.width :].flatten(0, 1), values).unflatten(0, queries.shape[:2])
        out = self.layout.to_rows(of_prompt, k.shape[1]) + of_decoded
        return out.transpose(0, 1).flatten(1, 2).to(q.dtype)

    @property
    def tokens(self) -> int:
        """Tokens that there is room for: what it costs in `kv_bytes_per_token`."""
        shape = self.decoded[0].shape
        return self.prompts[0][0].shape[1] * self.width + shape[2] * shape[3]

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but `rows`, the prompts that none of them continues, and columns before the first token."""
        self.decoded = [decoded.index_select(2, rows) for decoded in self.decoded]
        if self.began is not None:
            self.began = self.began.index_select(0, rows)
            first = int((self.began == 0).int().argmax(1).min())
            self.decoded = [decoded[:, :, :, first:].contiguous() for decoded in self.decoded]
            self.column -= first
            self.began = self.began[:, first:]
            self.began = self.began.contiguous() if bool((self.began[:, 0] != 0).any()) else None
        self._lay_out(self.layout.group_of_row[rows.cpu().numpy()])

    def tokens_joined(self, other: KVCache, max_new: int) -> int:
        """What `tokens` would be after `join`."""
        prompts = self.prompts[0][0].shape[1] + other.prompts[0][0].shape[1]
        rows = self.decoded[0].shape[2] + other.decoded[0].shape[2]
        return prompts * max(self.width, other.width) + rows * (max(self.column, other.column) + max_new)

    def join(self, other: KVCache, max_new: int) -> None:
        """Takes in the rows of `other` behind its own, with room for `max_new` more tokens in every row."""
        width, column = max(self.width, other.width), max(self.column, other.column)
        rows = [cache.decoded[0].shape[2] for cache in (self, other)]
        self.mask = _joined_mask(self, other, width)
        self.began = _joined_began(self, other, rows, column, column + max_new)
        for layer, ((keys, values), (more_keys, more_values)) in enumerate(
            zip(self.prompts, other.prompts, strict=True)
        ):
            keys = torch.cat([_padded(keys, 3, width), _padded(more_keys, 3, width)], dim=1)
            values = torch.cat([_padded(values, 2, width), _padded(more_values, 2, width)], dim=1)
            self.prompts[layer] = keys, values
            mine, theirs = self.decoded[layer], other.decoded[layer]
            joined = mine.new_zeros(2, mine.shape[1], sum(rows), column + max_new, mine.shape[4])
            joined[:, :, : rows[0], column - self.column : column] = mine[:, :, :, : self.column]
            joined[:, :, rows[0] :, column - other.column : column] = theirs[:, :, :, : other.column]
            self.decoded[layer] = joined
        groups = len(self.layout.prompt_of_group)
        prompt_of_row = np.concatenate([self.layout.group_of_row, other.layout.group_of_row + groups])
        self.width, self.column = width, column
        self._lay_out(prompt_of_row)

    def _lay_out(self, prompt_of_row: np.ndarray) -> None:
        """Groups the rows, and stores a prompt for each group: `prompt_of_row` counts the prompts as now stored."""
        device, stored = self.decoded[0].device, self.prompts[0][0].shape[1]
        self.layout = GroupLayout(prompt_of_row, device)
        if np.array_equal(self.layout.prompt_of_group, np.arange(stored)):
            return
        groups = torch.from_numpy(self.layout.prompt_of_group).to(device)
        self.prompts = [(keys.index_select(1, groups), values.index_select(1, groups)) for keys, values in self.prompts]
        self.mask = None if self.mask is None else self.mask.index_select(0, groups)


def _padded(x: Tensor, dim: int, size: int) -> Tensor:
    """x with zeros behind it up to `size` in one dimension."""
    if x.shape[dim] == size:
        return x
    shape = list(x.shape)
    shape[dim] = size - x.shape[dim]
    return torch.cat([x, x.new_zeros(shape)], dim=dim)


def _joined_mask(first: KVCache, second: KVCache, width: int) -> Tensor | None:
    """The mask of both caches' prompts, padded to `width`."""
    if first.width == second.width and first.mask is None and second.mask is None:
        return None
    parts = []
    for cache in (first, second):
        stored, device = cache.prompts[0][0].shape[1], cache.decoded[0].device
        mask = torch.full((stored, 1, width), float("-inf"), device=device)
        mask[:, :, : cache.width] = 0.0 if cache.mask is None else cache.mask
        parts.append(mask)
    return torch.cat(parts)


def _joined_began(first: KVCache, second: KVCache, rows: list[int], column: int, size: int) -> Tensor | None:
    """The columns before each row's first, once both caches end at `column` and have `size` columns."""
    if first.column == second.column and first.began is None and second.began is None:
        return None
    began = torch.zeros(sum(rows), size, device=first.decoded[0].device)
    for cache, part in ((first, slice(0, rows[0])), (second, slice(rows[0], None))):
        shift = column - cache.column
        began[part, :shift] = float("-inf")
        if cache.began is not None:
            began[part, shift:column] = cache.began[:, : cache.column]
    return began
