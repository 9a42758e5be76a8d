"""Runs admitted jobs: builds batches, and takes decode steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hone.inference.batch import Batch, Ticket
from hone.inference.cache import KVCache
from hone.inference.prefill import Prefill, Prompt
from hone.model.decoder import Decoder
from hone.model.device import upload

MAX_BATCHES = 4
"""Beyond this, the two smallest batches are joined. A join copies their caches; a batch costs a few kernels a layer."""


class Runner:
    """Decodes batches. A prompt is stored once for all its completions; the layers' products run over all batches.

    `InvariantRunner` and `GraphRunner` build batches in other ways. A row takes room for a multiple of `granule` tokens
    in the cache.
    """

    granule = 1
    ahead = False
    """True if a step begins before the host has read the last step's tokens, so that the GPU doesn't wait. Rows that
    have just ended are then computed once more.
    """

    def __init__(self, model: Decoder, prefix_bytes: int) -> None:
        self.model = model
        self.prefill = Prefill(model, prefix_bytes)

    def start(self, tickets: Sequence[Ticket], prompts: Sequence[Prompt]) -> list[Batch]:
        prompt_of_row = rows_of(tickets, prompts)
        logits_BV = first_logits(self.model, prompts, prompt_of_row)
        longest, lengths = max(ticket.job.max_tokens for ticket in tickets), [len(prompt.ids) for prompt in prompts]
        cache = KVCache([prompt.layers for prompt in prompts], lengths, prompt_of_row, longest)
        return [Batch(tickets, cache, logits_BV)]

    def tokens_with(self, batches: Sequence[Batch], rows: int = 0, width: int = 0) -> int:
        """Return the size in tokens of the batches' caches, if `rows` rows of at most `width` tokens were added."""
        return sum(batch.cache.tokens for batch in batches) + rows * -(-width // self.granule) * self.granule

    def join(self, batches: list[Batch], budget: int) -> None:
        """If more than `MAX_BATCHES`, join the two smallest in place, if all caches then fit into `budget` tokens."""
        if len(batches) <= MAX_BATCHES:
            return
        batches.sort(key=len, reverse=True)
        first, second = batches[-2:]
        others = sum(batch.cache.tokens for batch in batches[:-2])
        if others + first.cache.tokens_joined(second.cache, max(first.room, second.room)) <= budget:
            first.join(batches.pop())

    def decode(self, batches: Sequence[Batch]) -> None:
        sizes = [len(batch) for batch in batches]
        tokens, positions = (torch.cat([getattr(b, name) for b in batches]) for name in ("next", "positions"))
        caches = [cast(KVCache, batch.cache) for batch in batches]

        def side_by_side(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            parts = zip(caches, q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
            return torch.cat([cache(layer, *qkv) for cache, *qkv in parts])

        attention = caches[0] if len(batches) == 1 else side_by_side
        logits_BV = self.model.logits(self.model.hidden(tokens, positions, attention))
        for batch, part in zip(batches, logits_BV.split(sizes), strict=True):
            batch.moved(part)


def rows_of(tickets: Sequence[Ticket], prompts: Sequence[Prompt]) -> np.ndarray:
    """Return the index of each job's prompt, `[B]`."""
    index_of = {prompt.ids: index for index, prompt in enumerate(prompts)}
    return np.array([index_of[ticket.job.prompt] for ticket in tickets])


def first_logits(model: Decoder, prompts: Sequence[Prompt], prompt_of_row: np.ndarray) -> Tensor:
    """Return the logits `[B, V]` of each row's first token; `prompt_of_row`: index of the row's prompt."""
    last = torch.stack([prompt.hidden for prompt in prompts if prompt.hidden is not None])
    return model.logits(last).index_select(0, upload(prompt_of_row, last.device))
