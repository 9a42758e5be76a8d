"""A batch of sequences that decode in the same steps: each row's state and next token.

The model's inputs are tensors on its device. The host waits for the device once a step, to read the drawn tokens.

Shapes: B rows, T tokens of the longest completion, V vocabulary, K the largest `top_logprobs` of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hone import rng
from hone.inference.sampler import as_words, sample_tokens, set_bits, token_distribution
from hone.inference.types import Failure, Job, SamplingParams, Token
from hone.model.device import upload

if TYPE_CHECKING:
    from hone.inference.text import StopWatch

COMPACT_AT = 0.75
"""Finished rows are removed only when at most this share of the rows still runs, because removing copies the cache."""
_BY_ROW = ("uniforms", "index", "positions", "next", "logits")
"""Names of the batch's tensors that have one entry for each row."""
NOT_FINITE = "the model's logits are not finite"


class Cache(Protocol):
    @property
    def tokens(self) -> int: ...
    def moved(self) -> None: ...
    def keep(self, rows: np.ndarray) -> None: ...
    def tokens_joined(self, other: Any, max_new: int) -> int: ...
    def join(self, other: Any, max_new: int) -> None: ...


@dataclass(frozen=True)
class Ticket:
    """A job in the engine. `stops`: the token ids that end the job; `watch` looks for stop strings in its text."""

    number: int
    job: Job
    params: SamplingParams
    stops: tuple[int, ...]
    watch: StopWatch | None = None


class Batch:
    """Rows with a common KV cache. `logits` `[B, V]`: logits of each row's next token.

    `index` `[B]`: position of the next token in each completion. `drawn`: what `draw` returned, or None. A decode step
    that also samples sets `drawn` itself.
    """

    def __init__(self, tickets: Sequence[Ticket], cache: Cache, logits_BV: Tensor) -> None:
        device = logits_BV.device
        self.tickets, self.cache, self.logits = list(tickets), cache, logits_BV
        self.left = [ticket.job.max_tokens for ticket in tickets]
        keys = np.array([ticket.job.key for ticket in tickets], dtype=np.uint64)
        columns = max(self.left) + 1  # a row that has ended, but is still here, draws behind its last token
        self.uniforms = upload(rng.uniforms(keys, 0, columns), device)
        self.index = torch.zeros(len(tickets), dtype=torch.int64, device=device)  # of each row's next token
        self.positions = upload(np.array([len(ticket.job.prompt) for ticket in tickets]), device)
        self.next = self.index
        self._group()

    def __len__(self) -> int:
        return len(self.tickets)

    @property
    def room(self) -> int:
        return max(self.left)

    @property
    def common_params(self) -> SamplingParams | None:
        """Return the rows' sampling parameters; None if rows differ, or request more than ids and logprobs."""
        params = self._groups[0][0]
        return params if len(self._groups) == 1 and not (params.top_logprobs or params.keeps_ids) else None

    def draw(self) -> Tensor:
        """Draw each row's next token. Return `[B, 2 + 2 K + W]` float64: the token's id and logprob, ids and logprobs
        of the K likeliest tokens, and the candidate ids as a bit set of W words. All values are exact in float64, so
        the host needs to read only one tensor.
        """
        if self.drawn is not None:
            return self.drawn
        if len(self._groups) == 1:
            self.drawn = draw(self.logits, self.uniforms, self.index, self._groups[0][0])
        else:
            self.drawn = self.logits.new_zeros(len(self), self._columns, dtype=torch.float64)
            for params, rows in self._groups:
                logits, uniforms, index = (x.index_select(0, rows) for x in (self.logits, self.uniforms, self.index))
                mine = draw(logits, uniforms, index, params)
                self.drawn[rows, : mine.shape[1]] = mine
        self.next = self.drawn[:, 0].long()
        return self.drawn

    def take(self, drawn: Tensor, version: int) -> list[Token | Failure]:
        """Return each unfinished row's token, or a Failure if its logits aren't finite. `drawn` is on the host."""
        emitted: list[Token | Failure] = []
        for row, (token, logprob, *best) in enumerate(drawn[:, : self._narrow].tolist()):
            if not self.left[row]:
                continue
            ticket = self.tickets[row]
            if not math.isfinite(logprob):
                self.left[row] = 0
                emitted.append(Failure(ticket.number, f"{NOT_FINITE} (version {version} of the weights)"))
                continue
            id, watch, reason = int(token), ticket.watch, None
            self.left[row] -= 1
            if (watch is not None and watch.push(id)) or id in ticket.stops:
                self.left[row], reason = 0, "stop"
            elif not self.left[row]:
                reason = "length"
            top = _pairs(best, ticket.params.top_logprobs) if best else ()
            candidates = None
            if ticket.params.keeps_ids:
                begin = 2 + 2 * min(ticket.params.top_logprobs, self.logits.shape[1])
                candidates = set_bits(drawn[row, begin : begin + self._words].numpy())
            emitted.append(Token(ticket.number, id, logprob, top, version, reason, watch and watch.found, candidates))
        return emitted

    def compact(self) -> None:
        rows = np.flatnonzero(self.left)
        if len(rows) > COMPACT_AT * len(self):
            return
        self.tickets = [self.tickets[row] for row in rows]
        if not self.tickets:
            return
        self.left = [self.left[row] for row in rows]
        self.cache.keep(rows)
        index = upload(rows, self.logits.device)
        for name in _BY_ROW:
            setattr(self, name, getattr(self, name).index_select(0, index))
        self._group()

    def moved(self, logits_BV: Tensor) -> None:
        positions = self.positions + 1
        self.cache.moved()
        self.positions, self.logits, self.drawn = positions, logits_BV, None
        self.index = (self.index + 1).clamp_(max=self.uniforms.shape[1] - 1)

    def cancel(self, number: int) -> bool:
        for row, ticket in enumerate(self.tickets):
            if ticket.number == number:
                self.left[row] = 0
                return True
        return False

    def join(self, other: Batch) -> None:
        self.cache.join(other.cache, max(self.room, other.room))
        self.tickets += other.tickets
        self.left += other.left
        width = max(self.uniforms.shape[1], other.uniforms.shape[1])
        for batch in (self, other):
            batch.uniforms = torch.nn.functional.pad(batch.uniforms, (0, width - batch.uniforms.shape[1]))
        for name in _BY_ROW:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self._group()

    def _group(self) -> None:
        """Group rows with equal sampling parameters. A draw that was not yet read is discarded, and repeated later."""
        self.drawn: Tensor | None = None
        order = sorted(range(len(self)), key=lambda row: self.tickets[row].params.transform)
        self._groups: list[tuple[SamplingParams, Tensor]] = []
        for _, alike in groupby(order, key=lambda row: self.tickets[row].params.transform):
            rows = np.array(list(alike))
            self._groups.append((self.tickets[rows[0]].params, upload(rows, self.logits.device)))
        vocab, most = self.logits.shape[1], max(params.top_logprobs for params, _ in self._groups)
        self._narrow, self._words = 2 + 2 * min(most, vocab), -(-vocab // 32)
        self._columns = self._narrow + self._words * any(params.keeps_ids for params, _ in self._groups)


def draw(logits_BV: Tensor, uniforms_BT: Tensor, index_B: Tensor, params: SamplingParams) -> Tensor:
    """Draw like `Batch.draw`, for rows with equal parameters. Row b uses the number `uniforms_BT[b, index_B[b]]`."""
    uniforms_B = uniforms_BT.gather(1, index_B[:, None]).squeeze(1)
    tokens_B, logprobs_B, candidates_BV = sample_tokens(logits_BV, uniforms_B, params)
    columns = [x.double()[:, None] for x in (tokens_B, logprobs_B)]
    if params.top_logprobs:
        best = token_distribution(logits_BV, params).topk(min(params.top_logprobs, logits_BV.shape[1]))
        columns += [best.indices.double(), best.values.double()]
    if candidates_BV is not None:
        columns.append(as_words(candidates_BV))
    return torch.cat(columns, dim=1)


def _pairs(best: Sequence[float], wanted: int) -> tuple[tuple[int, float], ...]:
    """Return (token, logprob) of the `wanted` likeliest tokens. `best` `[2 K]`: K ids, then K logprobs."""
    wanted = min(wanted, len(best) // 2)
    return tuple((int(id), logprob) for id, logprob in zip(best[:wanted], best[wanted : 2 * wanted], strict=True))


def read(drawn: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Start copying `drawn` (from `Batch.draw`) to the host; return a function that waits for this copy."""
    if not drawn:
        return list
    flat = torch.cat([one.flatten() for one in drawn])
    shapes, arrived = [one.shape for one in drawn], None
    copied = flat.to("cpu", non_blocking=True)
    if flat.is_cuda:
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(flat.device))

    def wait() -> list[Tensor]:
        if arrived is not None:
            arrived.synchronize()
        parts = copied.split([shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    return wait
