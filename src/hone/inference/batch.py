"""A batch of sequences that decode in step: what is known of each row, and its next token.

Shapes: B rows, T tokens of the longest completion, V vocabulary, S stop ids of the row that has the most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hone import rng
from hone.inference.sampler import sample_tokens, token_distribution
from hone.inference.types import Failure, Job, SamplingParams, Token

if TYPE_CHECKING:
    from hone.inference.text import StopWatch

COMPACT_AT = 0.75
"""Finished sequences are removed from the batch once no more than this share is alive: removal copies the cache."""
_NO_TOKEN = -1
_BY_ROW = ("index", "last", "positions", "alive", "next", "logits")
_BY_COLUMN = ("uniforms", "stops")
"""The tensors of a batch: with a value for each row, and with as many columns as its longest row needs."""
NOT_FINITE = "the model's logits are not finite"

Tops = dict[int, tuple[tuple[int, float], ...]]
"""The likeliest tokens with their logprobs, of rows that ask for them."""


class Cache(Protocol):
    """Keys and values of the rows of a batch."""

    @property
    def tokens(self) -> int: ...
    def moved(self) -> None: ...
    def keep(self, rows: Tensor) -> None: ...
    def tokens_joined(self, other: Any, max_new: int) -> int: ...
    def join(self, other: Any, max_new: int) -> None: ...


@dataclass(frozen=True)
class Ticket:
    """A job in the engine: its number, how it is sampled, the ids that end it, and what looks out for stop strings."""

    number: int
    job: Job
    params: SamplingParams
    stops: tuple[int, ...]
    watch: StopWatch | None = None


class Batch:
    """Rows with a common KV cache. `logits` `[B, V]` are those of each row's next token."""

    def __init__(self, tickets: Sequence[Ticket], cache: Cache, logits_BV: Tensor) -> None:
        device = logits_BV.device
        self.tickets, self.cache, self.logits = list(tickets), cache, logits_BV
        limits = np.array([ticket.job.max_tokens for ticket in tickets])
        keys = np.array([ticket.job.key for ticket in tickets], dtype=np.uint64)
        columns = int(limits.max()) + 1  # a row that has ended, but is still here, draws behind its last token
        self.uniforms = torch.from_numpy(rng.uniforms(keys, 0, columns)).to(device)
        self.index = torch.zeros(len(tickets), dtype=torch.int64, device=device)  # of each row's next token
        self.last = torch.from_numpy(limits - 1).to(device)
        self.positions = torch.tensor([len(ticket.job.prompt) for ticket in tickets], device=device)
        self.alive = torch.ones(len(tickets), dtype=torch.bool, device=device)
        self.next = self.index
        width = max(1, max(len(ticket.stops) for ticket in tickets))
        stops = [[*ticket.stops, *[_NO_TOKEN] * (width - len(ticket.stops))] for ticket in tickets]
        self.stops = torch.tensor(stops, dtype=torch.int64, device=device)
        self._group()

    def __len__(self) -> int:
        return len(self.tickets)

    @property
    def room(self) -> int:
        """Return the tokens that the row with most of them left may still get."""
        return int((self.last - self.index).max()) + 1

    def sample(self, version: int) -> list[Token | Failure]:
        """Take the next token of every row; return those of rows that are alive.

        A row whose logits are not finite ends in a Failure, and the others go on.
        """
        uniforms = self.uniforms.gather(1, self.index[:, None]).squeeze(1)
        self.next, logprobs, tops = self._draw(uniforms)
        stopped = (self.next[:, None] == self.stops).any(1)
        before = self.alive
        if self._watched:
            stopped |= self._at_stop_string(before)
        self.last = torch.where(before & stopped, self.index, self.last)
        self.alive = before & (self.index < self.last)
        columns = (x.tolist() for x in (before, self.alive, stopped, self.next, logprobs))
        emitted: list[Token | Failure] = []
        for row, (was_alive, goes_on, at_stop, token, logprob) in enumerate(zip(*columns, strict=True)):
            ticket, watch = self.tickets[row].number, self.tickets[row].watch
            if was_alive and math.isfinite(logprob):
                reason = None if goes_on else "stop" if at_stop else "length"
                emitted.append(Token(ticket, token, logprob, tops.get(row, ()), version, reason, watch and watch.found))
            elif was_alive:
                self.alive[row] = False
                emitted.append(Failure(ticket, f"{NOT_FINITE} (version {version} of the weights)"))
        return emitted

    def _at_stop_string(self, alive: Tensor) -> Tensor:
        """Return rows `[B]` whose text has come to a stop string with the new token, which becomes their last."""
        at_stop = torch.zeros_like(alive)
        for row in self._watched:
            watch = self.tickets[row].watch
            if watch is not None and alive[row] and watch.push(int(self.next[row])):
                at_stop[row] = True
        return at_stop

    def _draw(self, uniforms: Tensor) -> tuple[Tensor, Tensor, Tops]:
        """Return tokens `[B]`, logprobs `[B]`, and by row the likeliest tokens, where they are asked for."""
        if len(self._groups) == 1 and not self._groups[0][0].top_logprobs:
            return *sample_tokens(self.logits, uniforms, self._groups[0][0]), {}
        tokens, logprobs = torch.zeros_like(self.index), torch.zeros_like(self.logits[:, 0], dtype=torch.float32)
        tops: Tops = {}
        for params, rows in self._groups:
            logits = self.logits.index_select(0, rows)
            tokens[rows], logprobs[rows] = sample_tokens(logits, uniforms.index_select(0, rows), params)
            if params.top_logprobs:
                best = token_distribution(logits, params).topk(min(params.top_logprobs, logits.shape[1]))
                columns = rows.tolist(), best.indices.tolist(), best.values.tolist()
                tops |= {row: tuple(zip(ids, values, strict=True)) for row, ids, values in zip(*columns, strict=True)}
        return tokens, logprobs, tops

    def advance(self) -> None:
        """Go on to the next token. Rows that ended are taken out once they are many."""
        if int(self.alive.sum()) <= COMPACT_AT * len(self):
            self._keep(self.alive.nonzero().squeeze(1))
        self.index = torch.minimum(self.index + 1, self.last + 1)

    def moved(self, logits_BV: Tensor) -> None:
        """Note a decode step, with the logits that it gave."""
        positions = self.positions + 1
        self.cache.moved()
        self.positions, self.logits = positions, logits_BV

    def cancel(self, number: int) -> bool:
        """End the row of this ticket, if it is here."""
        for row, ticket in enumerate(self.tickets):
            if ticket.number == number:
                self.alive = self.alive.clone()
                self.alive[row] = False
                return True
        return False

    def _keep(self, rows: Tensor) -> None:
        self.tickets = [self.tickets[row] for row in rows.tolist()]
        if not self.tickets:
            return
        self.cache.keep(rows)
        for name in (*_BY_ROW, *_BY_COLUMN):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        self._group()

    def join(self, other: Batch) -> None:
        """Take in the rows of another batch."""
        room = max(self.room, other.room)
        self.cache.join(other.cache, room)
        self.tickets += other.tickets
        for name in _BY_COLUMN:
            mine, theirs = getattr(self, name), getattr(other, name)
            width, fill = max(mine.shape[1], theirs.shape[1]), _NO_TOKEN if name == "stops" else 0
            padded = [torch.nn.functional.pad(x, (0, width - x.shape[1]), value=fill) for x in (mine, theirs)]
            setattr(self, name, torch.cat(padded))
        for name in _BY_ROW:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self._group()

    def _group(self) -> None:
        """Group the rows that are sampled in the same way, and note those whose text is watched."""
        self._watched = [row for row, ticket in enumerate(self.tickets) if ticket.watch is not None]
        order = sorted(range(len(self)), key=lambda row: self.tickets[row].params.transform)
        self._groups: list[tuple[SamplingParams, Tensor]] = []
        for _, alike in groupby(order, key=lambda row: self.tickets[row].params.transform):
            rows = list(alike)
            self._groups.append((self.tickets[rows[0]].params, torch.tensor(rows, device=self.logits.device)))
