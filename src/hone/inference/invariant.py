"""Batch-invariant sampling: a sample's tokens and logprobs have the same bits with any other rows in the batch.

A floating-point sum depends on the order of its terms, and kernels choose this order by the shapes of their inputs. So
every shape is fixed here. The model always gets a tile of `TILE` rows. Attention gets one block of `TILE` tokens at a
time, counted from the sequence's beginning; tokens after a sequence's end add exact zeros. Prompts are computed in
aligned chunks of `TILE` tokens, so neither chunked prefill nor a cached prefix changes a bit. Some kernels still
compute the rows of a tile differently. The engine tests this when it starts, and if so uses tiles of one row.

Shapes: B rows, K key/value heads, G query heads for each key/value head, H = K G, Dh head size, T largest row length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hone.inference.batch import Batch, Ticket
from hone.inference.cache import product, scaled
from hone.inference.prefill import Layers, Prefill, Prompt
from hone.inference.runner import Runner, rows_of
from hone.model.decoder import Decoder
from hone.model.device import upload

TILE = 32
"""Number of rows in a tile, and of tokens in a prompt's chunk and in an attention block."""


class InvariantRunner(Runner):
    """Decodes batches of at most `tile` rows, one after the other, each padded to `tile` rows."""

    granule = TILE

    def __init__(self, model: Decoder, prefix_bytes: int) -> None:
        super().__init__(model, prefix_bytes)
        self.tile = TILE if rows_are_alike(model) else 1
        self.prefill = InvariantPrefill(model, prefix_bytes)

    def start(self, tickets: Sequence[Ticket], prompts: Sequence[Prompt]) -> list[Batch]:
        prompt_of_row = rows_of(tickets, prompts).tolist()
        batches = []
        for begin in range(0, len(tickets), self.tile):
            mine = [prompts[row] for row in prompt_of_row[begin : begin + self.tile]]
            hidden = torch.stack([prompt.hidden for prompt in mine if prompt.hidden is not None])
            logits_BV = self.model.logits(padded(hidden, self.tile))[: len(mine)]
            part = tickets[begin : begin + self.tile]
            cache = RowCache([prompt.layers for prompt in mine], max(ticket.job.max_tokens for ticket in part))
            batches.append(Batch(part, cache, logits_BV))
        return batches

    def join(self, batches: list[Batch], budget: int) -> None:
        """Join the two smallest batches, as often as they fit into one tile and all caches fit into `budget` tokens."""
        while len(batches) > 1:
            batches.sort(key=len, reverse=True)
            first, second = batches[-2:]
            others = sum(batch.cache.tokens for batch in batches[:-2])
            joined = first.cache.tokens_joined(second.cache, max(first.room, second.room))
            if len(first) + len(second) > self.tile or others + joined > budget:
                return
            first.join(batches.pop())

    def decode(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            tokens, positions = padded(batch.next, self.tile), padded(batch.positions, self.tile)
            hidden_BD = self.model.hidden(tokens, positions, cast(RowCache, batch.cache))
            batch.moved(self.model.logits(hidden_BD)[: len(batch)])


class RowCache:
    """Keys and values of a few sequences, each with its prompt; also the decoder's attention in a decode step.

    `layers`: per layer `[2, B, K, T, Dh]`, T a multiple of `TILE`; `lengths` `[B]`: tokens so far. Later columns are
    zero. The B sequences are the first rows of the tile.
    """

    def __init__(self, prompts: Sequence[Layers], max_new: int) -> None:
        k = prompts[0][0][0]
        self.sizes = np.array([len(layers[0][0]) for layers in prompts])  # `lengths` on the host
        self.room, self.longest = max_new, int(self.sizes.max())
        self.lengths = upload(self.sizes, k.device)
        self.layers = [
            k.new_zeros(2, len(prompts), k.shape[1], _blocks(self.longest) * TILE, k.shape[2]) for _ in prompts[0]
        ]
        for row, layers in enumerate(prompts):
            for stored, (keys, values) in zip(self.layers, layers, strict=True):
                stored[0, row, :, : len(keys)] = keys.transpose(0, 1)
                stored[1, row, :, : len(keys)] = values.transpose(0, 1)

    def __len__(self) -> int:
        return len(self.lengths)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v `[tile, K, Dh]` of one new token per row; attend from q `[tile, H, Dh]` to the row's tokens."""
        if layer == 0:
            self._make_room()
        tile, stored, rows = len(q), self.layers[layer], torch.arange(len(self), device=q.device)
        q, k, v = (x[: len(self)] for x in (q, k, v))
        stored[0, rows, :, self.lengths] = k
        stored[1, rows, :, self.lengths] = v
        queries, scale = scaled(q)
        queries = queries.reshape(-1, q.shape[1] // k.shape[1], q.shape[2])  # [B K, G, Dh]
        blocks = [block.flatten(1, 2) for block in stored.split(TILE, dim=3)]
        masks = [mask.repeat_interleave(k.shape[1], dim=0)[:, None] for mask in self.mask.split(TILE, dim=1)]
        return padded(_attend(queries, blocks, masks, scale).view(q.shape).to(q.dtype), tile)

    def _make_room(self) -> None:
        """Make room for each row's new token. Set `mask` `[B, T]` to 0 up to the new token, and to -inf after it."""
        missing = _blocks(self.longest + 1) * TILE - self.layers[0].shape[3]
        if missing > 0:
            for index, layer in enumerate(self.layers):
                self.layers[index] = F.pad(layer, (0, 0, 0, missing))
        columns = torch.arange(self.layers[0].shape[3], device=self.lengths.device)
        self.mask = _minus_infinity(columns > self.lengths[:, None])

    def moved(self) -> None:
        self.lengths = self.lengths + 1
        self.sizes = self.sizes + 1
        self.longest += 1
        self.room -= 1

    @property
    def tokens(self) -> int:
        return len(self) * _blocks(self.longest + max(self.room, 0)) * TILE

    def tokens_joined(self, other: RowCache, max_new: int) -> int:
        return (len(self) + len(other)) * _blocks(max(self.longest, other.longest) + max_new) * TILE

    def keep(self, rows: np.ndarray) -> None:
        index = upload(rows, self.lengths.device)
        self.lengths, self.sizes = self.lengths.index_select(0, index), self.sizes[rows]
        self.longest = int(self.sizes.max())
        size = _blocks(self.longest) * TILE
        for number, layer in enumerate(self.layers):
            self.layers[number] = layer[:, :, :, :size].index_select(1, index)

    def join(self, other: RowCache, max_new: int) -> None:
        self.longest, self.room = max(self.longest, other.longest), max_new
        size = max(self.layers[0].shape[3], other.layers[0].shape[3])
        for index, pair in enumerate(zip(self.layers, other.layers, strict=True)):
            self.layers[index] = torch.cat([F.pad(x, (0, 0, 0, size - x.shape[3])) for x in pair], dim=1)
        self.lengths = torch.cat([self.lengths, other.lengths])
        self.sizes = np.concatenate([self.sizes, other.sizes])


class InvariantPrefill(Prefill):
    """Computes each prompt alone, in chunks of `TILE` tokens from its beginning; cached prefixes are whole chunks."""

    def __init__(self, model: Decoder, prefix_bytes: int) -> None:
        super().__init__(model, prefix_bytes, block=TILE)

    def advance(self, prompts: Sequence[Prompt], budget: int) -> None:
        for prompt in prompts:
            end = prompt.done + max(TILE, budget // TILE * TILE)
            while prompt.done < min(end, len(prompt.ids)):
                self._chunk(prompt)
        self._remember(prompts)

    def _chunk(self, prompt: Prompt) -> None:
        assert prompt.done % TILE == 0
        device, ids = self.model.device, prompt.ids[prompt.done : prompt.done + TILE]
        attention = _ChunkAttention(prompt.layers)
        token_ids = padded(upload(np.array(ids), device), TILE)
        positions = torch.arange(prompt.done, prompt.done + TILE, device=device)
        hidden_ND = self.model.hidden(token_ids, positions, attention)
        past = prompt.layers or [None] * len(attention.layers)
        prompt.layers = [_behind(old, new, len(ids)) for old, new in zip(past, attention.layers, strict=True)]
        prompt.done += len(ids)
        prompt.computed(hidden_ND[: len(ids)])


class _ChunkAttention:
    """Causal attention of one chunk of a prompt. `past`: keys and values of the prompt's earlier tokens."""

    def __init__(self, past: Layers) -> None:
        self.past = past
        self.layers: Layers = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.layers.append((k, v))
        kv = torch.stack([k, v])
        if self.past:
            kv = torch.cat([torch.stack(self.past[layer]), kv], dim=1)
        blocks = list(kv.transpose(1, 2).split(TILE, dim=2))  # each [2, K, TILE, Dh]
        group = q.shape[1] // k.shape[1]
        queries, scale = scaled(q)
        queries = queries.unflatten(1, (-1, group)).permute(1, 2, 0, 3)  # [K, G, TILE, Dh]
        order = torch.arange(TILE, device=q.device)
        future = _minus_infinity(order > order[:, None]).repeat(group, 1)
        masks = [torch.zeros_like(future)] * (len(blocks) - 1) + [future]
        out = _attend(queries.flatten(1, 2), blocks, masks, scale)
        return out.unflatten(1, (group, TILE)).permute(2, 0, 1, 3).flatten(1, 2).to(q.dtype)


def _attend(queries: Tensor, blocks: Sequence[Tensor], masks: Sequence[Tensor], scale: float) -> Tensor:
    """Compute attention of queries `[N, M, Dh]` to blocks of keys and values `[2, N, TILE, Dh]`, block by block."""
    scores = [product(queries, keys.mT).add_(mask) for (keys, _), mask in zip(blocks, masks, strict=True)]
    if scale != 1:
        scores = [score.mul_(scale) for score in scores]
    top = torch.stack([score.amax(-1, keepdim=True) for score in scores]).amax(0)
    out = torch.zeros_like(queries, dtype=torch.float32)
    total = torch.zeros_like(top)
    for score, (_, values) in zip(scores, blocks, strict=True):
        weights = (score - top).exp_()
        total = total + weights.sum(-1, keepdim=True)
        out = product(weights, values, plus=out)
    return out / total


@torch.no_grad()
def rows_are_alike(model: Decoder, trials: int = 3, steps: int = 2) -> bool:
    """Return True if a row gets the same bits at every place in a tile, whatever the other rows are, on this machine.

    Tests rows with random keys and values: all rows in order, all rows in another order, and a few rows alone.
    """
    config, generator = model.config, torch.Generator().manual_seed(0)
    shape = (config.num_kv_heads, config.head_dim)

    def prompt(length: int) -> Layers:
        layers = [
            torch.randn(2, length, *shape, generator=generator).to(model.device, model.kv_dtype)
            for _ in range(config.num_layers)
        ]
        return [(keys, values) for keys, values in layers]

    for _ in range(trials):
        prompts = [prompt(length) for length in torch.randint(1, 2 * TILE, (TILE,), generator=generator).tolist()]
        token_ids = torch.randint(config.vocab_size, (steps, TILE), generator=generator)
        order = torch.randperm(TILE, generator=generator).tolist()
        whole = _decoded(model, prompts, token_ids, range(TILE))
        for rows in (order, order[: TILE // 3], order[:1]):
            if not torch.equal(_decoded(model, prompts, token_ids, rows), whole[:, rows]):
                return False
    return True


def _decoded(model: Decoder, prompts: Sequence[Layers], token_ids: Tensor, rows: Sequence[int]) -> Tensor:
    """Decode `rows` in one tile, with the tokens `token_ids` `[steps, TILE]`; return the logits `[steps, rows, V]`."""
    cache = RowCache([prompts[row] for row in rows], len(token_ids))
    logits = []
    for tokens in token_ids:
        mine, positions = tokens[list(rows)].to(model.device), cache.lengths
        hidden_BD = model.hidden(padded(mine, TILE), padded(positions, TILE), cache)
        logits.append(model.logits(hidden_BD)[: len(rows)])
        cache.moved()
    return torch.stack(logits)


def _behind(old: tuple[Tensor, Tensor] | None, new: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    k, v = new[0][:count], new[1][:count]
    return (k.clone(), v.clone()) if old is None else (torch.cat([old[0], k]), torch.cat([old[1], v]))


def padded(x: Tensor, rows: int) -> Tensor:
    return F.pad(x, (*[0] * (2 * x.dim() - 1), rows - len(x)))


def _blocks(tokens: int) -> int:
    return -(-tokens // TILE)


def _minus_infinity(where: Tensor) -> Tensor:
    return torch.zeros(where.shape, device=where.device).masked_fill_(where, float("-inf"))
