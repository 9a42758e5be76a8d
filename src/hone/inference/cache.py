"""A static KV cache for a batch that decodes in step, in which each prompt is stored once for all its completions.

A decode step attends in two products: the queries of all rows that continue a prompt to that prompt's keys, and each
row's own query to the tokens that it has decoded itself; one softmax runs over both. All rows have decoded equally many
tokens, so they write to the same column and only a short prompt's padding needs a mask. Keys, values and arithmetic are
fp32 whatever the model's dtype: with bf16 scores a bf16 model's logprobs are up to 0.04 from its trainer's.

Shapes: B rows, P prompts of at most `width` tokens, K key/value heads, G query heads that share one, Dh head size,
T decoded tokens; E groups of R slots (see `GroupLayout`). The key/value head comes first, so that rows and groups of
rows are two views of one tensor.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hone.model.attention import PackedAttention
from hone.model.config import DecoderConfig


def kv_bytes_per_token(config: DecoderConfig) -> int:
    """Bytes of keys and values for one token in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * torch.float32.itemsize


class PrefillAttention:
    """Packed causal attention over the prompts that keeps each layer's keys and values `[N, K, Dh]`."""

    def __init__(self, lengths: list[int]) -> None:
        self.packed = PackedAttention(lengths)
        self.layers: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.layers.append((k, v))
        return self.packed(layer, q, k, v)


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
    `[2, K, B, T, Dh]`. `column` is where the next token goes. `mask` `[E, 1, width]` is 0 on a prompt's tokens, -inf on
    the padding behind a short one; None if all prompts are equally long.
    """

    def __init__(self, prefill: PrefillAttention, lengths: list[int], prompt_of_row: np.ndarray, max_new: int) -> None:
        """`prompt_of_row` `[B]`: the prompt that each row continues."""
        k = prefill.layers[0][0]
        self.width, self.column = max(lengths), 0
        real = torch.arange(self.width, device=k.device) < torch.tensor(lengths, device=k.device)[:, None]  # [P, width]
        self.prompts, self.decoded = [], []
        for layer in prefill.layers:
            padded = k.new_zeros(2, len(lengths), self.width, *k.shape[1:], dtype=torch.float32)
            padded[:, real] = torch.stack(layer).float()
            keys, values = padded[0].permute(2, 0, 3, 1), padded[1].permute(2, 0, 1, 3)
            self.prompts.append((keys.contiguous(), values.contiguous()))
            self.decoded.append(padded.new_empty(2, k.shape[1], len(prompt_of_row), max_new, k.shape[2]))
        self.mask = None
        if min(lengths) < self.width:
            self.mask = torch.zeros_like(real, dtype=torch.float32).masked_fill(~real, float("-inf"))[:, None]
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
        scores = torch.cat([self.layout.to_rows(to_prompt, k.shape[1]), to_decoded], dim=-1)
        probs = scores.softmax(-1)

        of_prompt = torch.bmm(self.layout.to_groups(probs[..., : self.width]), prompt_values)
        of_decoded = torch.bmm(probs[..., self.width :].flatten(0, 1), values).unflatten(0, queries.shape[:2])
        out = self.layout.to_rows(of_prompt, k.shape[1]) + of_decoded
        return out.transpose(0, 1).flatten(1, 2).to(q.dtype)

    def keep(self, rows: Tensor) -> None:
        """Drops all rows but `rows`, and the prompts that none of them continues."""
        self.decoded = [decoded.index_select(2, rows) for decoded in self.decoded]
        self._lay_out(self.layout.group_of_row[rows.cpu().numpy()])

    def _lay_out(self, prompt_of_row: np.ndarray) -> None:
        """Groups the rows, and stores a prompt for each group: `prompt_of_row` counts the prompts as now stored."""
        device, stored = self.decoded[0].device, self.prompts[0][0].shape[1]
        self.layout = GroupLayout(prompt_of_row, device)
        if np.array_equal(self.layout.prompt_of_group, np.arange(stored)):
            return
        groups = torch.from_numpy(self.layout.prompt_of_group).to(device)
        self.prompts = [(keys.index_select(1, groups), values.index_select(1, groups)) for keys, values in self.prompts]
        self.mask = None if self.mask is None else self.mask.index_select(0, groups)
