"""Decoding with CUDA graphs. A step's kernels are recorded once per shape, and from then on launched together.

A graph is bound to the addresses and shapes that it was recorded with. So each sequence has a slot in a `SlotState`,
and the tensors of a `SlotState` don't move. A step rounds the numbers of slots and tokens up to powers of two; results
for unused slots and tokens are discarded. Before a batch's first step, all shapes that the batch may reach are
recorded, with one memory pool, so that graphs share intermediate memory. Weights and their bf16 copies
(`Linear.refresh`) are updated in place, so graphs read new weights.

A step stores each row's token where the next step reads it, so the next step can begin before the host knows the token.
A step launches two graphs: the model's, and one for sampling. Rows are sampled without a graph if their sampling
parameters differ, are not recorded yet, or request likeliest tokens. Weights must be updated on the same stream as the
steps.

On a CPU the same step runs without recording. Tests of recording and replay use a fake GPU.

Shapes: B rows, K key/value heads, G query heads for each key/value head, Dh head size, V vocabulary, N prompt tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hone.inference.batch import Batch, Ticket, draw
from hone.inference.memory import GRANULE, ROOM, power_of_two, slot_tokens
from hone.inference.prefill import Prompt
from hone.inference.runner import Runner, first_logits, rows_of
from hone.inference.types import SamplingParams
from hone.model.attention import sdpa, takes_varlen, varlen
from hone.model.decoder import Decoder
from hone.model.device import upload
from hone.model.head import head_logits

MAX_GRAPHS = 128
"""Largest number of graphs. For one more, the least recently used graph is dropped."""
VARLEN = False
"""If true, bf16 attention uses `varlen` (needs torch 2.13) to read only a row's tokens. Not measured yet."""
MAX_WAYS, FEW = 1024, 4
"""Most sets of sampling parameters that are remembered (the latest), and most that are recorded together."""


class GraphRunner(Runner):
    """Decodes all sequences as one batch, with graphs."""

    def __init__(self, model: Decoder, prefix_bytes: int, kv_bytes: int) -> None:
        super().__init__(model, prefix_bytes)
        self.ahead = model.device.type == "cuda"
        self.state = SlotState(model, kv_bytes // model.kv_bytes_per_token)
        self.graphs: dict[tuple, Callable[[], object]] = {}
        """Key: (tokens of a slot, slots covered, tokens covered or `SamplingParams.transform`)."""
        self._asked: dict[tuple, tuple[int, SamplingParams]] = {}
        """`SamplingParams.transform` → (number of prompts that requested these parameters, the parameters)."""

    def start(self, tickets: Sequence[Ticket], prompts: Sequence[Prompt]) -> list[Batch]:
        for (way, _), params in {(t.params.transform, t.job.prompt): t.params for t in tickets}.items():
            self._asked[way] = self._asked.pop(way, (0, params))[0] + 1, params
            if len(self._asked) > MAX_WAYS:
                del self._asked[next(iter(self._asked))]
        prompt_of_row = rows_of(tickets, prompts)
        max_tokens = np.array([ticket.job.max_tokens for ticket in tickets])
        logits_BV = first_logits(self.model, prompts, prompt_of_row)
        return [Batch(tickets, SlotCache(prompts, prompt_of_row, max_tokens), logits_BV)]

    def tokens_with(self, batches: Sequence[Batch], rows: int = 0, width: int = 0) -> int:
        """Return the size in tokens of one batch with all rows. Every slot has as many tokens as the longest row."""
        widths = [slot_tokens(width), *(_cache(batch).span for batch in batches)]
        return (sum(map(len, batches)) + rows) * max(widths)

    def join(self, batches: list[Batch], budget: int) -> None:
        if not batches:
            return
        first, rows = batches[0], sum(map(len, batches))
        placed = _cache(first).state is not None
        if self.state.lay_out(rows, max(_cache(batch).span for batch in batches), len(first) if placed else 0):
            self.graphs.clear()
        if not placed:
            _cache(first).move_into(self.state, 0)
        while len(batches) > 1:
            first.join(batches.pop(1))

    def decode(self, batches: Sequence[Batch]) -> None:
        state = self.state
        for batch in batches:  # it is one
            state.load(batch)
            params = batch.common_params
            if params is not None and self._asked.get(params.transform, (0,))[0] < 2:
                params = None  # it is sampled behind the step
            now, last = (
                min(max(GRANULE, power_of_two(tokens)), state.tokens)
                for tokens in (_cache(batch).longest + 1, int(_cache(batch).ends.max()))
            )
            slots = _powers(1, min(power_of_two(len(batch)), state.slots))
            shapes = ((rows, tokens) for rows in slots for tokens in _powers(GRANULE, max(now, last)))
            self._launch(partial(_decode, self.model, state), shapes, (slots[0], now))
            if params is not None:
                shapes = ((rows, way) for rows in slots for way in (params, *self._often()))
                self._launch(partial(_sample, state), shapes, (slots[0], params))
            state.moved(batch, sampled=params is not None)

    def _often(self) -> list[SamplingParams]:
        ways = self._asked.values()
        return [way for count, way in ways if count > 1 and not (way.top_logprobs or way.keeps_ids)][-FEW:]

    def _launch(self, step: Callable[..., object], shapes: Iterable[tuple[int, Any]], wanted: tuple[int, Any]) -> None:
        """Launch the graph of the shape `wanted`. If this graph is missing, first record graphs of all `shapes`."""

        def key(shape: tuple[int, Any]) -> tuple:
            return self.state.tokens, shape[0], getattr(shape[1], "transform", shape[1])

        if key(wanted) not in self.graphs:
            missing = {key(shape): shape for shape in shapes if key(shape) not in self.graphs}
            for name, shape in missing.items():
                self.graphs[name] = self._record(partial(step, *shape))
        graph = self.graphs[key(wanted)] = self.graphs.pop(key(wanted))  # the last one used is the last one here
        for old in list(self.graphs)[:-MAX_GRAPHS]:
            del self.graphs[old]
        graph()

    def _record(self, step: Callable[[], object]) -> Callable[[], object]:
        if self.model.device.type != "cuda":
            return step
        graph, rows = torch.cuda.CUDAGraph(), self.state.rows
        with torch.cuda.device(self.model.device):
            if not self.graphs:
                self._stream, self._pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
            here, before = torch.cuda.current_stream(), rows.clone()
            rows[1] = self.state.tokens - 1  # where no row has a key that is read
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                step()  # libraries set themselves up at a first call, which can't be recorded
            here.wait_stream(self._stream)
            rows.copy_(before)  # so that the step can be repeated
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                step()
        return graph.replay


class SlotState:
    """Slots that store one sequence each, and the input and output tensors of a step.

    `stored`: per layer keys and values `[2, size, K, Dh]` in the model's `kv_dtype`, cut into slots by `lay_out`.
    `size` is at most `budget` tokens, unless the rows need more. `rows` `[3, slots]`: each row's last token, its
    position, and the index of the row's next random number in `uniforms` `[slots, tokens]`. A step writes `logits`
    `[slots, V]` and `drawn` `[slots, 2]`.
    """

    def __init__(self, model: Decoder, budget: int) -> None:
        c = model.config
        empty = torch.empty(2, 0, c.num_kv_heads, c.head_dim, device=model.device, dtype=model.kv_dtype)
        self.stored, self.logits = [empty] * c.num_layers, torch.empty(0, c.vocab_size, device=model.device)
        self.budget, self.longest = budget, slot_tokens(c.max_position_embeddings)
        self.size = self.slots = self.tokens = 0

    @property
    def layers(self) -> list[Tensor]:
        """Keys and values of each layer, `[2, slots, tokens, K, Dh]`."""
        return [_cut(stored, self.slots, self.tokens) for stored in self.stored]

    def lay_out(self, rows: int, tokens: int, placed: int) -> bool:
        """If needed, make room for `rows` rows of `tokens` tokens. The rows in the first `placed` slots stay.

        Return True if tensors were replaced, which invalidates all graphs. To make this rare, new tensors have `ROOM`
        times the requested room, if the budget allows.
        """
        if rows <= self.slots and tokens <= self.tokens:
            return False
        double, before = power_of_two(rows), self.layers if placed else []
        size = max(rows * tokens, min(self.budget, max(self.size, ROOM * double * tokens)))
        slots = double if 2 * double * tokens <= size else size // tokens if placed else rows
        grown, more = size != self.size, slots > len(self.logits)
        self.slots = self.tokens = self.size = 0  # if this fails, nothing can be decoded
        tokens = max(tokens, min(size // slots // GRANULE * GRANULE, self.longest))
        for index, stored in enumerate(self.stored):
            rows_here = before[index][:, :placed, :tokens].clone() if placed else None
            if grown:
                stored = self.stored[index] = stored.new_empty(2, size, *stored.shape[2:])
            if rows_here is not None:
                layer = _cut(stored, slots, tokens)[:, :placed]
                layer.zero_()[:, :, : rows_here.shape[2]] = rows_here
                before[index] = stored  # frees the old one
        device = self.logits.device
        if grown:
            self.numbers = torch.zeros(1, size, dtype=torch.float64, device=device)
        if more:
            self.rows = torch.zeros(3, slots, dtype=torch.int64, device=device)
            self.next, self.positions, self.index = self.rows
            self.drawn = torch.zeros(slots, 2, dtype=torch.float64, device=device)
            self.logits = torch.zeros(slots, self.logits.shape[1], device=device)
        self.slots, self.tokens, self.size = slots, tokens, size
        self.uniforms = _cut(self.numbers, slots, tokens)[0]
        return grown or more

    def load(self, batch: Batch) -> None:
        """Copy each row's inputs for a step into the state, unless the last step already wrote them there."""
        for name in ("next", "positions", "index", "uniforms"):
            here, mine = getattr(self, name)[: len(batch)], getattr(batch, name)
            if here.data_ptr() != mine.data_ptr():
                width = min(here.shape[-1], mine.shape[-1])  # of uniforms; other rows have as many numbers
                here[..., :width] = mine[..., :width]

    def moved(self, batch: Batch, sampled: bool) -> None:
        """Give a batch the results of a step, with the drawn tokens if `sampled` is true."""
        rows = len(batch)
        _cache(batch).moved()
        batch.next, batch.positions, batch.index = self.rows[:, :rows]
        batch.uniforms, batch.logits = self.uniforms[:rows], self.logits[:rows]
        batch.drawn = self.drawn[:rows] if sampled else None


class SlotCache:
    """Keys and values of B sequences: first in the prefill's tensors, after `move_into` in slots of `state`.

    `lengths` `[B]`: tokens so far; `ends` `[B]`: largest number of tokens.
    """

    def __init__(self, prompts: Sequence[Prompt], prompt_of_row: np.ndarray, max_tokens: np.ndarray) -> None:
        self.prompts, self.prompt_of_row = prompts, prompt_of_row
        self.lengths = np.array([len(prompt.ids) for prompt in prompts])[prompt_of_row]
        self.ends = self.lengths + max_tokens
        self.state: SlotState | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return int(self.lengths.max())

    @property
    def span(self) -> int:
        return slot_tokens(int(self.ends.max()))

    @property
    def tokens(self) -> int:
        return len(self) * self.span

    def tokens_joined(self, other: SlotCache, max_new: int = 0) -> int:
        return (len(self) + len(other)) * max(self.span, other.span)

    def moved(self) -> None:
        self.lengths = self.lengths + 1

    def keep(self, rows: np.ndarray) -> None:
        assert self.state is not None
        self.lengths, self.ends = self.lengths[rows], self.ends[rows]
        index = upload(rows, self.state.logits.device)
        for layer in self.state.layers:
            layer[:, : len(rows)] = layer.index_select(1, index)

    def join(self, other: SlotCache, max_new: int) -> None:
        """Append the rows of `other`. `state` must have a free slot for each new row."""
        assert self.state is not None
        other.move_into(self.state, len(self))
        self.lengths = np.concatenate([self.lengths, other.lengths])
        self.ends = np.concatenate([self.ends, other.ends])

    def move_into(self, state: SlotState, begin: int) -> None:
        """Copy row i into slot `begin` + i, for all rows, and fill the rest of each slot with zeros."""
        self.state, end = state, begin + len(self)
        assert end <= state.slots and self.span <= state.tokens
        ends = np.cumsum([len(prompt.ids) for prompt in self.prompts])
        column = np.concatenate([np.arange(length) for length in self.lengths])
        source = column + np.repeat(ends[self.prompt_of_row] - self.lengths, self.lengths)
        slot = np.repeat(np.arange(begin, end), self.lengths)
        where = upload(np.stack([source, slot, column]), state.logits.device)
        source_N, slot_N, column_N = where
        for index, layer in enumerate(state.layers):
            layer[:, begin:end] = 0
            for which in (0, 1):
                stored = torch.cat([prompt.layers[index][which] for prompt in self.prompts])
                layer[which][slot_N, column_N] = stored.index_select(0, source_N)
        self.prompts = []


def _decode(model: Decoder, state: SlotState, slots: int, tokens: int) -> None:
    """Take one model step of the first `slots` slots: read `rows`, write `logits`. A slot attends to `tokens` tokens.

    The host must not wait for the device here, nor read its results. Empty slots and finished rows may have any
    position, because a row writes only to its slot.
    """
    ids, positions, index = state.rows[:, :slots]
    here = positions.clamp(max=state.tokens - 1)
    hidden_BD = model.hidden(ids, here, _SlotAttention(state.layers, here, tokens))
    head_logits(hidden_BD, model.head_weight, model.precision, out=state.logits[:slots])
    state.rows[1:, :slots] += 1
    index.clamp_(max=state.tokens - 1)


def _sample(state: SlotState, slots: int, params: SamplingParams) -> None:
    ids, _, index = state.rows[:, :slots]
    state.drawn[:slots] = draw(state.logits[:slots], state.uniforms, index, params)
    ids.copy_(state.drawn[:slots, 0])


class _SlotAttention:
    """Attention of one new token per slot, at `positions` `[B]`. Stores the token's key and value first.

    On a GPU, SDPA's fused kernels have fp32 scores and sums. On a CPU they are less exact, so inputs are cast to fp32.
    """

    def __init__(self, layers: list[Tensor], positions: Tensor, tokens: int) -> None:
        device = positions.device
        self.layers, self.positions, self.tokens = layers, positions, tokens
        self.rows = torch.arange(len(positions), device=device)
        if VARLEN:
            starts = torch.arange(len(positions) + 1, device=device, dtype=torch.int32)
            self.varlen_rows, self.seen = (starts, starts * layers[0].shape[2], 1, tokens), (positions + 1).int()
        self.dtype = torch.float32 if device.type == "cpu" else layers[0].dtype
        future = torch.arange(tokens, device=device) > positions[:, None]
        self.mask = torch.zeros(future.shape, device=device, dtype=self.dtype).masked_fill_(future, float("-inf"))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        stored = self.layers[layer]
        stored[0][self.rows, self.positions] = k
        stored[1][self.rows, self.positions] = v
        if VARLEN and takes_varlen(q):
            return varlen(q, *stored[:, : len(q)].flatten(1, 2), *self.varlen_rows, seqused_k=self.seen)
        keys, values = stored[:, : len(q), : self.tokens].transpose(2, 3).to(self.dtype)  # each [B, K, tokens, Dh]
        # The heads that share keys stand where SDPA has a sequence's tokens: SDPA's fused kernels with a mask know no
        # groups of heads, and its other kernels would copy the keys.
        queries = q.to(self.dtype).unflatten(1, (k.shape[1], -1))  # [B, K, G, Dh]
        mask = self.mask[:, None, None].expand(-1, *queries.shape[1:3], -1)
        return sdpa(queries, keys, values, mask).flatten(1, 2).to(q.dtype)


def _cache(batch: Batch) -> SlotCache:
    return cast(SlotCache, batch.cache)


def _cut(stored: Tensor, slots: int, tokens: int) -> Tensor:
    """View `[2, size, …]` as slots `[2, slots, tokens, …]`, without the tokens left over."""
    return stored[:, : slots * tokens].unflatten(1, (slots, tokens))


def _powers(least: int, most: int) -> list[int]:
    """Return `most`, and all powers of two from `least` to below `most`, largest first."""
    return [most, *(1 << bits for bits in reversed(range(most.bit_length())) if least <= 1 << bits < most)]
