"""A static KV cache for a batch that decodes in step.

Prompts are right-aligned: every sequence writes its next token to the same column, so a decode step stores keys and
values with one slice copy per layer, and the mask is a row-wise constant (a shorter prompt's empty columns on the
left).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from hone.model.attention import PackedAttention
from hone.model.config import DecoderConfig


def kv_bytes_per_token(config: DecoderConfig, dtype: torch.dtype) -> int:
    """Bytes of keys and values for one token in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


class PrefillAttention:
    """Packed causal attention over the prompts that keeps each layer's keys and values `[N, Hkv, Dh]`."""

    def __init__(self, lengths: list[int]) -> None:
        self.packed = PackedAttention(lengths)
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.layers.append((k, v))
        return self.packed(layer, q, k, v)


class KVCache:
    """Keys and values of B sequences `[layers][2, B, Hkv, L, Dh]`; acts as the decoder's attention in a decode step.

    `column` is where the next token goes: `width` (the longest prompt) + tokens decoded so far. `mask` `[B, 1, 1, L]`
    is 0 on visible columns, -inf on the padding before a short prompt; None if all prompts are equally long.
    """

    def __init__(self, prefill: PrefillAttention, lengths: list[int], rows: torch.Tensor, max_new: int) -> None:
        """`rows` `[B]`: the prompt that each sequence continues; its keys and values are shared by copying once."""
        self.width = max(lengths)
        self.column = self.width
        k = prefill.layers[0][0]
        lengths_P = torch.tensor(lengths, device=k.device)
        pads_P = self.width - lengths_P
        prompt = torch.repeat_interleave(torch.arange(len(lengths), device=k.device), lengths_P)
        starts = torch.cat([lengths_P.new_zeros(1), lengths_P.cumsum(0)[:-1]])
        column = torch.arange(len(prompt), device=k.device) - starts[prompt] + pads_P[prompt]
        shape = (2, len(rows), k.shape[1], self.width + max_new, k.shape[2])
        self.layers = []
        for key, value in prefill.layers:
            prompts = k.new_zeros(2, len(lengths), self.width, *k.shape[1:])
            prompts[0, prompt, column] = key
            prompts[1, prompt, column] = value
            cache = k.new_empty(shape)
            cache[:, :, :, : self.width] = prompts.transpose(2, 3).index_select(1, rows)
            self.layers.append(cache)
        self.mask = None
        if len(set(lengths)) > 1:
            hidden = torch.arange(self.width + max_new, device=k.device)[None, :] < pads_P[rows][:, None]
            self.mask = torch.zeros_like(hidden, dtype=k.dtype).masked_fill(hidden, float("-inf"))[:, None, None, :]

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q `[B, H, Dh]`, k and v `[B, Hkv, Dh]` of one new token per sequence; stores k, v and attends to all so far.

        The query heads that share a key head are laid along the query axis, so keys are never repeated in memory.
        """
        cache = self.layers[layer]
        cache[0, :, :, self.column] = k
        cache[1, :, :, self.column] = v
        end = self.column + 1
        queries = q.unflatten(1, (k.shape[1], -1))  # [B, Hkv, H / Hkv, Dh]
        mask = None if self.mask is None else self.mask[..., :end].expand(-1, k.shape[1], queries.shape[2], -1)
        out = F.scaled_dot_product_attention(queries, cache[0, :, :, :end], cache[1, :, :, :end], attn_mask=mask)
        return out.flatten(1, 2)

    def keep(self, rows: torch.Tensor) -> None:
        """Drops all sequences but `rows`."""
        self.layers = [cache.index_select(1, rows) for cache in self.layers]
        if self.mask is not None:
            self.mask = self.mask.index_select(0, rows)
