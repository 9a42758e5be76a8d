"""Prompts before their first token is sampled: whole, in chunks, or from where a cached prefix ends.

Shapes: N tokens of all prompts end to end, H query heads, K key/value heads, Dh head size, D hidden size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hone.model.attention import PackedAttention
from hone.model.decoder import Decoder

BLOCK = 16
"""A cached prefix is a multiple of this many tokens long, unless told otherwise."""

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values `[tokens, K, Dh]` of each layer."""


class PrefillAttention:
    """Packed causal attention over the prompts that keeps each layer's keys and values `[N, K, Dh]`."""

    def __init__(self, lengths: list[int]) -> None:
        self.packed = PackedAttention(lengths)
        self.layers: Layers = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.layers.append((k, v))
        return self.packed(layer, q, k, v)


class ContinuedAttention:
    """Causal attention of the next tokens of one prompt, whose earlier ones have these keys and values."""

    def __init__(self, past: Layers) -> None:
        self.past = past
        self.layers: Layers = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        past_k, past_v = self.past[layer]
        k, v = torch.cat([past_k, k]), torch.cat([past_v, v])
        self.layers.append((k, v))
        new, total = q.shape[0], k.shape[0]
        sees = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
        heads = (x.float().transpose(0, 1)[None] for x in (q, k, v))
        out = F.scaled_dot_product_attention(*heads, attn_mask=sees, enable_gqa=q.shape[1] != k.shape[1])
        return out[0].transpose(0, 1).to(q.dtype)


@dataclass
class Prompt:
    """A prompt on its way through the model: `layers` hold its first `done` tokens, `hidden` `[D]` is of the last.

    `all_hidden`, if wanted, collects those of all tokens `[tokens, D]`, chunk by chunk.
    """

    ids: tuple[int, ...]
    layers: Layers
    done: int = 0
    hidden: Tensor | None = None
    all_hidden: list[Tensor] | None = None

    def computed(self, hidden_ND: Tensor) -> None:
        """Takes the hidden states of its next tokens."""
        self.hidden = hidden_ND[-1]
        if self.all_hidden is not None:
            self.all_hidden.append(hidden_ND)


class Prefill:
    """Computes prompts with the model, and remembers prefixes in at most `prefix_bytes`."""

    def __init__(self, model: Decoder, prefix_bytes: int = 0, block: int = BLOCK) -> None:
        self.model = model
        self.prefixes = PrefixCache(prefix_bytes, block)

    def begin(self, ids: tuple[int, ...], all_hidden: bool = False) -> Prompt:
        """The prompt with what a cached prefix knows of it: never the last token, whose hidden state is needed.

        `all_hidden`: every token's hidden state is wanted, so nothing is taken from the cache.
        """
        if all_hidden:
            return Prompt(ids, [], all_hidden=[])
        layers, done = self.prefixes.longest(ids[:-1])
        return Prompt(ids, layers, done)

    def advance(self, prompts: Sequence[Prompt], budget: int) -> None:
        """Computes the prompts to their ends: together if none has begun and all fit into `budget` tokens.

        Else one by one, and of a prompt with more tokens left than `budget` only that many.
        """
        if all(prompt.done == 0 for prompt in prompts) and sum(len(prompt.ids) for prompt in prompts) <= budget:
            self._together(prompts)
        else:
            for prompt in prompts:
                self._chunk(prompt, budget)
        for prompt in prompts:
            if prompt.done == len(prompt.ids):
                self.prefixes.add(prompt.ids, prompt.layers)

    def _together(self, prompts: Sequence[Prompt]) -> None:
        device = self.model.device
        lengths = [len(prompt.ids) for prompt in prompts]
        token_ids = torch.tensor([token for prompt in prompts for token in prompt.ids], device=device)
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        attention = PrefillAttention(lengths)
        hidden_ND = self.model.hidden(token_ids, positions, attention)
        start = 0
        for prompt, length in zip(prompts, lengths, strict=True):
            part = slice(start, start + length)
            prompt.layers = [(k[part], v[part]) for k, v in attention.layers]
            prompt.done = length
            prompt.computed(hidden_ND[part])
            start += length

    def _chunk(self, prompt: Prompt, budget: int) -> None:
        device, end = self.model.device, min(prompt.done + budget, len(prompt.ids))
        token_ids = torch.tensor(prompt.ids[prompt.done : end], device=device)
        positions = torch.arange(prompt.done, end, device=device)
        attention = ContinuedAttention(prompt.layers) if prompt.done else PrefillAttention([end])
        hidden_ND = self.model.hidden(token_ids, positions, attention)
        prompt.layers, prompt.done = attention.layers, end
        prompt.computed(hidden_ND)


class PrefixCache:
    """Keys and values of recent prompts, found again by any prefix of whole blocks; the least used are dropped first.

    Valid for one version of the weights: `clear` it when they change.
    """

    def __init__(self, max_bytes: int, block: int = BLOCK) -> None:
        self.max_bytes, self.block = max_bytes, block
        self.bytes = 0
        self._prompts: OrderedDict[tuple[int, ...], Layers] = OrderedDict()
        self._owner: dict[tuple[int, ...], tuple[int, ...]] = {}

    def longest(self, ids: tuple[int, ...]) -> tuple[Layers, int]:
        """Keys and values of the longest known prefix, and its length; ([], 0) if none is known."""
        for length in range(len(ids) // self.block * self.block, 0, -self.block):
            owner = self._owner.get(ids[:length])
            if owner is not None:
                self._prompts.move_to_end(owner)
                return [(k[:length], v[:length]) for k, v in self._prompts[owner]], length
        return [], 0

    def add(self, ids: tuple[int, ...], layers: Layers) -> None:
        """Remembers a prompt, unless it is longer than the cache or too short for a block."""
        size = _bytes(layers)
        if size > self.max_bytes or len(ids) < self.block or ids in self._prompts:
            return
        while self.bytes + size > self.max_bytes:
            self._drop(next(iter(self._prompts)))
        # A copy: a slice would keep all prompts that were computed together in memory.
        self._prompts[ids] = [(k.clone(), v.clone()) for k, v in layers]
        self.bytes += size
        for length in range(self.block, len(ids) + 1, self.block):
            self._owner[ids[:length]] = ids

    def clear(self) -> None:
        """Forgets everything."""
        self._prompts.clear()
        self._owner.clear()
        self.bytes = 0

    def _drop(self, ids: tuple[int, ...]) -> None:
        self.bytes -= _bytes(self._prompts.pop(ids))
        for length in range(self.block, len(ids) + 1, self.block):
            if self._owner.get(ids[:length]) == ids:
                del self._owner[ids[:length]]


def _bytes(layers: Layers) -> int:
    return sum(x.numel() * x.element_size() for pair in layers for x in pair)
