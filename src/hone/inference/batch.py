"""A batch of sequences that decode in step: what is known of each row, and its next token.

Shapes: B rows, T tokens of the longest completion, V vocabulary, S stop ids of the row that has the most.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hone import rng
from hone.inference.sampler import sample_tokens, token_distribution
from hone.inference.text import StopWatch
from hone.inference.types import Completion, Failure, Job, SamplingParams, Token

COMPACT_AT = 0.75
"""Finished sequences are removed from the batch once no more than this share is alive: removal copies the cache."""
_NO_TOKEN = -1
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


def failures(tickets: Iterable[int], error: Exception) -> list[Failure]:
    """Make a Failure for each of the jobs with these tickets, which raised `error`."""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    text = next(iter(str(error).strip().splitlines()), "")[:300]
    lines = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
    return [Failure(ticket, f"{type(error).__name__}: {text}", lines) for ticket in tickets]


class Batch:
    """Rows with a common KV cache. `logits` `[B, V]` are those of each row's next token.

    `whole` is False while it takes in another batch, and stays so if that fails: it cannot be used any more then.
    """

    whole = True

    def __init__(self, tickets: Sequence[Ticket], cache: Cache, logits_BV: Tensor) -> None:
        device = logits_BV.device
        self.tickets, self.cache, self.logits = list(tickets), cache, logits_BV
        limits = np.array([ticket.job.max_tokens for ticket in tickets])
        keys = np.array([ticket.job.key for ticket in tickets], dtype=np.uint64)
        columns = int(limits.max()) + 1  # a row that has ended, but is still here, writes behind its last token
        self.uniforms = torch.from_numpy(rng.uniforms(keys, 0, columns)).to(device)
        self.tokens = torch.zeros(len(tickets), columns, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(len(tickets), columns, device=device)
        self.index = torch.zeros(len(tickets), dtype=torch.int64, device=device)  # of each row's next token
        self.last = torch.from_numpy(limits - 1).to(device)
        self.positions = torch.tensor([len(ticket.job.prompt) for ticket in tickets], device=device)
        self.alive = torch.ones(len(tickets), dtype=torch.bool, device=device)
        self.next = self.index
        self.cut = ~self.alive  # rows ended by a stop id or a stop string, at `last`
        width = max(1, max(len(ticket.stops) for ticket in tickets))
        stops = [[*ticket.stops, *[_NO_TOKEN] * (width - len(ticket.stops))] for ticket in tickets]
        self.stops = torch.tensor(stops, dtype=torch.int64, device=device)
        self._group()

    def __len__(self) -> int:
        return len(self.tickets)

    @property
    def numbers(self) -> list[int]:
        """The tickets' numbers."""
        return [ticket.number for ticket in self.tickets]

    @property
    def room(self) -> int:
        """Tokens that the row with most of them left may still get."""
        return int((self.last - self.index).max()) + 1

    def sample(self, version: int, emit: bool) -> list[Token | Failure]:
        """Takes the next token of every row; of rows that are alive they are returned if `emit`.

        With `emit` a row whose token cannot be sampled ends in a Failure, and the others go on.
        """
        column = self.index[:, None]
        uniforms = self.uniforms.gather(1, column).squeeze(1)
        self.next, logprobs, tops, failed = self._draw(uniforms, emit)
        self.tokens.scatter_(1, column, self.next[:, None])
        self.logprobs.scatter_(1, column, logprobs[:, None])
        stopped = (self.next[:, None] == self.stops).any(1)
        before = self.alive
        if self._watched:
            stopped |= self._at_stop_string(before)
        self.cut |= before & stopped
        self.last = torch.where(before & stopped, self.index, self.last)
        self.alive = before & (self.index < self.last)
        return self._emitted(before, logprobs, tops, version, failed) if emit else []

    def _at_stop_string(self, alive: Tensor) -> Tensor:
        """Rows `[B]` whose text has come to a stop string with the new token, which becomes their last."""
        found = torch.zeros_like(alive)
        for row in self._watched:
            watch = self.tickets[row].watch
            if watch is not None and alive[row] and watch.push(int(self.next[row])):
                found[row] = True
        return found

    def _draw(self, uniforms: Tensor, emit: bool) -> tuple[Tensor, Tensor, Tops, dict[int, Failure]]:
        """Tokens `[B]`, logprobs `[B]`, and by row the likeliest tokens, and what failed (only with `emit`)."""
        if len(self._groups) == 1 and not self._groups[0][0].top_logprobs:
            chosen, its_logprobs = sample_tokens(self.logits, uniforms, self._groups[0][0])
            return chosen, its_logprobs, {}, {}
        tokens, logprobs = torch.zeros_like(self.index), torch.zeros_like(self.logits[:, 0], dtype=torch.float32)
        tops: Tops = {}
        failed: dict[int, Failure] = {}
        for params, rows in self._groups:
            logits = self.logits.index_select(0, rows)
            try:
                tokens[rows], logprobs[rows] = sample_tokens(logits, uniforms.index_select(0, rows), params)
                if params.top_logprobs and emit:
                    best = token_distribution(logits, params).topk(min(params.top_logprobs, logits.shape[1]))
                    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                    found = zip(rows.tolist(), pairs, strict=True)
                    tops |= {row: tuple(zip(*pair, strict=True)) for row, pair in found}
            except Exception as error:
                if not emit:
                    raise
                mine = rows.tolist()
                failed |= zip(mine, failures((self.tickets[row].number for row in mine), error), strict=True)
        return tokens, logprobs, tops, failed

    def _emitted(
        self, before: Tensor, logprobs: Tensor, tops: Tops, version: int, failed: dict[int, Failure]
    ) -> list[Token | Failure]:
        columns = (x.tolist() for x in (before, self.alive, self.cut, self.next, logprobs))
        emitted: list[Token | Failure] = []
        lost = []
        for row, (was, goes_on, at_stop, token, logprob) in enumerate(zip(*columns, strict=True)):
            ticket = self.tickets[row].number
            if not was:
                continue
            if row in failed or not math.isfinite(logprob):
                lost.append(row)
                emitted.append(failed.get(row) or Failure(ticket, f"{NOT_FINITE} (version {version} of the weights)"))
            else:
                reason = None if goes_on else "stop" if at_stop else "length"
                emitted.append(Token(ticket, token, logprob, tops.get(row, ()), version, reason))
        if lost:
            self.alive[lost] = False
        return emitted

    def advance(self) -> dict[int, Completion]:
        """Goes on to the next token. Rows that ended are taken out once they are many; returns their completions."""
        remaining = int(self.alive.sum())
        ended: dict[int, Completion] = {}
        if remaining <= COMPACT_AT * len(self):
            ended = self._completions((~self.alive).nonzero().squeeze(1))
            self._keep(self.alive.nonzero().squeeze(1))
        self.index = torch.minimum(self.index + 1, self.last + 1)
        return ended

    def moved(self, logits_BV: Tensor) -> None:
        """To be called after a decode step, with the logits that it gave."""
        positions = self.positions + 1
        self.cache.moved()
        self.positions, self.logits = positions, logits_BV

    def cancel(self, number: int) -> bool:
        """Ends the row of this ticket, if it is here."""
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
        for name in (
            "uniforms",
            "tokens",
            "logprobs",
            "index",
            "last",
            "positions",
            "alive",
            "cut",
            "next",
            "stops",
            "logits",
        ):
            setattr(self, name, getattr(self, name).index_select(0, rows))
        self._group()

    def join(self, other: Batch) -> None:
        """Takes in the rows of another batch."""
        self.whole = False
        room = max(self.room, other.room)
        self.cache.join(other.cache, room)
        self.tickets += other.tickets
        for name in ("uniforms", "tokens", "logprobs", "stops"):
            mine, theirs = getattr(self, name), getattr(other, name)
            width, fill = max(mine.shape[1], theirs.shape[1]), _NO_TOKEN if name == "stops" else 0
            padded = [torch.nn.functional.pad(x, (0, width - x.shape[1]), value=fill) for x in (mine, theirs)]
            setattr(self, name, torch.cat(padded))
        for name in ("index", "last", "positions", "alive", "cut", "next", "logits"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self._group()
        self.whole = True

    def _group(self) -> None:
        """Rows that are sampled in the same way, and those whose text is watched."""
        self._watched = [row for row, ticket in enumerate(self.tickets) if ticket.watch is not None]
        order = sorted(range(len(self)), key=lambda row: self.tickets[row].params.transform)
        self._groups: list[tuple[SamplingParams, Tensor]] = []
        for _, found in groupby(order, key=lambda row: self.tickets[row].params.transform):
            rows = list(found)
            self._groups.append((self.tickets[rows[0]].params, torch.tensor(rows, device=self.logits.device)))

    def _completions(self, rows: Tensor) -> dict[int, Completion]:
        """Completions of rows that have ended."""
        columns = (self.tokens, self.logprobs, self.last, self.cut)
        tokens_BT, logprobs_BT, last_B, cut_B = (x.index_select(0, rows).cpu().numpy() for x in columns)
        found = {}
        for i, (row, count) in enumerate(zip(rows.tolist(), last_B + 1, strict=True)):
            reason = "stop" if cut_B[i] else "length"
            completion = Completion(tokens_BT[i, :count].tolist(), logprobs_BT[i, :count].tolist(), reason)
            found[self.tickets[row].number] = completion
        return found
