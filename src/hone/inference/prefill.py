"""Prefill of prompts, at once or in chunks. The beginning of a prompt may come from a cache.

Shapes: N tokens of all prompts end to end, H query heads, K key/value heads, Dh head size, D hidden size.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from hone.model.attention import PackedAttention, sdpa, takes_varlen, varlen, varlen_rows
from hone.model.decoder import Decoder
from hone.model.device import upload

BLOCK = 16
"""By default, a cached prefix has a multiple of this many tokens."""

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values `[tokens, K, Dh]` of each layer."""


class PrefillAttention:
    """Packed causal attention over prompts; stores each layer's keys and values `[N, K, Dh]`.

    Keys and values are copied. Otherwise the queries would stay in memory too: all three are views of one tensor.
    """

    def __init__(self, lengths: list[int]) -> None:
        self.packed = PackedAttention(lengths)
        self.layers: Layers = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.layers.append((k.contiguous(), v.contiguous()))
        return self.packed(layer, q, k, v)


class ContinuedAttention:
    """Causal attention of each prompt's next `lengths` tokens. `pasts`: keys and values of the earlier tokens."""

    def __init__(self, pasts: Sequence[Layers], lengths: list[int]) -> None:
        self.pasts, self.lengths = pasts, lengths
        self.totals = [len(past[0][0]) + new if past else new for past, new in zip(pasts, lengths, strict=True)]
        self.layers: list[Layers] = [[] for _ in pasts]
        self._rows: tuple[Tensor, Tensor, int, int] | None = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not takes_varlen(q):
            parts = zip(*(x.split(self.lengths) for x in (q, k, v)), self.pasts, self.layers, strict=True)
            return torch.cat([self._one(layer, *part) for part in parts])
        if self._rows is None:
            self._rows = varlen_rows(self.lengths, self.totals, q.device)
        news = zip(self.pasts, k.split(self.lengths), v.split(self.lengths), strict=True)
        pairs = [pair for past, *new in news for pair in ([past[layer], new] if past else [new])]
        k, v = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        for layers, *pair in zip(self.layers, k.split(self.totals), v.split(self.totals), strict=True):
            layers.append((pair[0], pair[1]))
        return varlen(q, k, v, *self._rows)

    @staticmethod
    def _one(layer: int, q: Tensor, k: Tensor, v: Tensor, past: Layers, layers: Layers) -> Tensor:
        if past:
            k, v = torch.cat([past[layer][0], k]), torch.cat([past[layer][1], v])
        layers.append((k.contiguous(), v.contiguous()))
        new, total = q.shape[0], k.shape[0]
        sees = torch.ones(new, total, dtype=torch.bool, device=q.device).tril(total - new)
        out = sdpa(*(x.float().transpose(0, 1)[None] for x in (q, k, v)), mask=sees)
        return out[0].transpose(0, 1).to(q.dtype)


@dataclass
class Prompt:
    """A prompt in prefill. `layers`: keys and values of the first `done` tokens; `hidden` `[D]`: the last hidden state.

    If `all_hidden` is a list, each chunk appends the hidden states of its tokens `[tokens, D]`.
    """

    ids: tuple[int, ...]
    layers: Layers
    done: int = 0
    hidden: Tensor | None = None
    all_hidden: list[Tensor] | None = None
    weights: int = 0
    """Number of weight updates before the prompt began."""

    def computed(self, hidden_ND: Tensor) -> None:
        self.hidden = hidden_ND[-1]
        if self.all_hidden is not None:
            self.all_hidden.append(hidden_ND)


class Prefill:
    """Runs the model over prompts, and caches the keys and values of prefixes in at most `prefix_bytes` bytes."""

    def __init__(self, model: Decoder, prefix_bytes: int = 0, block: int = BLOCK) -> None:
        self.model = model
        self.prefixes = PrefixCache(prefix_bytes, block)
        self._weights = 0

    def weights_changed(self) -> None:
        """Drop all cached prefixes. Prompts that are in progress won't be cached."""
        self.prefixes.clear()
        self._weights += 1

    def begin(self, ids: tuple[int, ...], all_hidden: bool = False) -> Prompt:
        """Return the prompt, with any cached prefix. The last token is always computed: its hidden state is needed.

        If `all_hidden` is true, the hidden state of every token is needed, so the cache is not used.
        """
        if all_hidden:
            return Prompt(ids, [], all_hidden=[], weights=self._weights)
        layers, done = self.prefixes.longest(ids[:-1])
        return Prompt(ids, layers, done, weights=self._weights)

    def advance(self, prompts: Sequence[Prompt], budget: int) -> None:
        """Compute the rest of all prompts together, if it has at most `budget` tokens.

        Otherwise compute at most `budget` tokens of each prompt, one prompt after another.
        """
        if sum(len(prompt.ids) - prompt.done for prompt in prompts) <= budget:
            fresh = [prompt for prompt in prompts if prompt.done == 0]
            begun = [prompt for prompt in prompts if prompt.done > 0]
            if fresh:
                self._together(fresh)
            if begun:
                self._continue(begun, budget)
        else:
            for prompt in prompts:
                self._continue([prompt], budget)
        self._remember(prompts)

    def _remember(self, prompts: Sequence[Prompt]) -> None:
        """Cache each finished prompt, unless weights have changed since the prompt began."""
        for prompt in prompts:
            if prompt.done == len(prompt.ids) and prompt.weights == self._weights:
                self.prefixes.add(prompt.ids, prompt.layers)

    def _together(self, prompts: Sequence[Prompt]) -> None:
        device = self.model.device
        lengths = [len(prompt.ids) for prompt in prompts]
        token_ids = upload(np.array([token for prompt in prompts for token in prompt.ids]), device)
        positions = torch.cat([torch.arange(length, device=device) for length in lengths])
        attention = PrefillAttention(lengths)
        ends = list(accumulate(lengths))
        whole = any(prompt.all_hidden is not None for prompt in prompts)
        only = None if whole else upload(np.array(ends) - 1, device)
        states = self.model.hidden(token_ids, positions, attention, only).split(lengths if whole else 1)
        for prompt, (start, end), hidden_ND in zip(prompts, pairwise([0, *ends]), states, strict=True):
            prompt.layers = [(k[start:end], v[start:end]) for k, v in attention.layers]
            prompt.done = end - start
            prompt.computed(hidden_ND)

    def _continue(self, prompts: Sequence[Prompt], budget: int) -> None:
        """Compute the next tokens of all prompts, at most `budget` tokens a prompt, in one pass."""
        device = self.model.device
        ends = [min(prompt.done + budget, len(prompt.ids)) for prompt in prompts]
        new = [prompt.ids[prompt.done : end] for prompt, end in zip(prompts, ends, strict=True)]
        token_ids = upload(np.array([token for ids in new for token in ids]), device)
        spans = zip(prompts, ends, strict=True)
        positions = torch.cat([torch.arange(prompt.done, end, device=device) for prompt, end in spans])
        lengths = [len(ids) for ids in new]
        attention = ContinuedAttention([prompt.layers for prompt in prompts], lengths)
        parts = self.model.hidden(token_ids, positions, attention).split(lengths)
        for prompt, end, layers, hidden_ND in zip(prompts, ends, attention.layers, parts, strict=True):
            prompt.layers, prompt.done = layers, end
            prompt.computed(hidden_ND)


class PrefixCache:
    """Keys and values of recent prompts, found by any prefix of whole blocks. Drops the least recently used prompts.

    The entries are valid for one version of the weights: call `clear` when weights change.
    """

    def __init__(self, max_bytes: int, block: int = BLOCK) -> None:
        self.max_bytes, self.block = max_bytes, block
        self.bytes = 0
        self._prompts: OrderedDict[tuple[int, ...], Layers] = OrderedDict()
        self._owner: dict[bytes, tuple[int, ...]] = {}  # by the hash of a prefix: the latest prompt that begins so

    def longest(self, ids: tuple[int, ...]) -> tuple[Layers, int]:
        """Return keys and values of the longest cached prefix, and its length; ([], 0) if no prefix is cached."""
        if not self._prompts:
            return [], 0
        for number, key in reversed(list(enumerate(self._hashes(ids), start=1))):
            owner, length = self._owner.get(key), number * self.block
            if owner is not None and owner[:length] == ids[:length]:
                self._prompts.move_to_end(owner)
                return [(k[:length], v[:length]) for k, v in self._prompts[owner]], length
        return [], 0

    def add(self, ids: tuple[int, ...], layers: Layers) -> None:
        """Store a prompt, unless it is larger than the cache or shorter than a block."""
        size = _bytes(layers)
        if size > self.max_bytes or len(ids) < self.block or ids in self._prompts:
            return
        while self.bytes + size > self.max_bytes:
            self._drop(next(iter(self._prompts)))
        # A copy: a slice would keep all prompts that were computed together in memory.
        self._prompts[ids] = [(k.clone(), v.clone()) for k, v in layers]
        self.bytes += size
        self._owner |= dict.fromkeys(self._hashes(ids), ids)

    def clear(self) -> None:
        self._prompts.clear()
        self._owner.clear()
        self.bytes = 0

    def _hashes(self, ids: tuple[int, ...]) -> Iterator[bytes]:
        """Yield a hash of each prefix of whole blocks, shortest first. A hash covers the hash before it."""
        key = b""
        for end in range(self.block, len(ids) + 1, self.block):
            key = blake2b(key + array("q", ids[end - self.block : end]).tobytes(), digest_size=16).digest()
            yield key

    def _drop(self, ids: tuple[int, ...]) -> None:
        self.bytes -= _bytes(self._prompts.pop(ids))
        for key in self._hashes(ids):
            if self._owner.get(key) == ids:
                del self._owner[key]


def _bytes(layers: Layers) -> int:
    return sum(x.numel() * x.element_size() for pair in layers for x in pair)
