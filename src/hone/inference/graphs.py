"""Decoding with CUDA graphs: a step's kernels are recorded once for each shape, and launched together from then on.

A graph is bound to the addresses and shapes that it was recorded with. So sequences lie in the slots of a `SlotState`,
and its tensors stay where they are, each sequence from its first token on (a group's prompt is stored once per row). A
step covers a power of two of slots and of tokens; unused ones are computed and thrown away. Weights are updated in
place, their bf16 copies too (`Linear.refresh`), so a graph reads the new ones.

A step goes from each row's last token to its next one, which it leaves where the next step reads it: so that can begin
before the host knows the token. Each way of sampling has separate graphs. So rows that are sampled in different ways,
or for the first time in this way, or with their likeliest tokens, are sampled behind the step. Updates of weights must
be on the stream of the steps.

On a CPU the very same step runs without being recorded. Recording and replay are tested on a fake GPU, which repeats
recorded operations on the recorded memory; they have not been run on a real one, and nothing here has been measured.

Shapes: B rows, K key/value heads, G query heads that share one, Dh head size, V vocabulary, N prompt tokens.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hone.inference.batch import Batch, Ticket, draw
from hone.inference.memory import GRANULE, slot_tokens
from hone.inference.prefill import Prompt
from hone.inference.runner import Runner, first_logits, rows_of
from hone.inference.types import SamplingParams
from hone.model.decoder import Decoder
from hone.model.device import upload
from hone.model.head import head_logits

MAX_PADDING = 2
"""Batches are joined unless their cache would grow by more than this factor: a step reads all of it."""
MAX_GRAPHS = 64
"""A state drops the graph that it has not used for longest when it has more."""
MAX_WAYS = 1024
"""Ways of sampling that are remembered, the latest ones."""


class GraphRunner(Runner):
    """Decodes batches one after the other, as few as possible, each with one graph."""

    granule = GRANULE

    def __init__(self, model: Decoder, prefix_bytes: int, kv_bytes: int) -> None:
        super().__init__(model, prefix_bytes)
        self.budget = kv_bytes // model.kv_bytes_per_token
        self.ahead = model.device.type == "cuda"
        self.states: list[SlotState] = []
        self._asked: dict[tuple, int] = {}
        """Requests of each way of sampling, by a prompt: `SamplingParams.transform`."""

    def start(self, tickets: Sequence[Ticket], prompts: Sequence[Prompt]) -> list[Batch]:
        for way, _ in {(ticket.params.transform, ticket.job.prompt) for ticket in tickets}:
            self._asked[way] = self._asked.pop(way, 0) + 1
            if len(self._asked) > MAX_WAYS:
                del self._asked[next(iter(self._asked))]
        prompt_of_row = rows_of(tickets, prompts)
        max_tokens = np.array([ticket.job.max_tokens for ticket in tickets])
        logits_BV = first_logits(self.model, prompts, prompt_of_row)
        return [Batch(tickets, SlotCache(prompts, prompt_of_row, max_tokens), logits_BV)]

    def join(self, batches: list[Batch], budget: int) -> None:
        """Join the two smallest that may be one, again and again; a batch without slots yet joins the other."""
        while (pair := _pair_to_join(batches, budget)) is not None:
            batches.remove(pair[1])
            self._join(*pair)
            del pair  # which frees the second one's state
            self._make_room(0)

    def _join(self, batch: Batch, other: Batch) -> None:
        first, second = _cache(batch), _cache(other)
        self._grow(first, len(first) + len(second), max(first.span, second.span))
        batch.join(other)

    def decode(self, batches: Sequence[Batch]) -> None:
        states = [_cache(batch).state or self._place(_cache(batch)) for batch in batches]
        for batch, state in zip(batches, states, strict=True):
            state.load(batch)
            params = batch.common_params
            if params is not None and self._asked.get(params.transform, 0) < 2:
                params = None  # it is sampled behind the step
            tokens = max(GRANULE, _power_of_two(_cache(batch).longest + 1))
            shape = min(_power_of_two(len(batch)), state.slots), min(tokens, state.tokens)
            key = *shape, params and params.transform
            graph = state.graphs.pop(key, None) or self._record(state, *shape, params)
            state.graphs[key] = graph  # the last one used is the last one here
            if len(state.graphs) > MAX_GRAPHS:
                del state.graphs[next(iter(state.graphs))]
            graph()
            state.moved(batch, sampled=params is not None)

    def _record(self, state: SlotState, slots: int, tokens: int, params: SamplingParams | None) -> Callable[[], object]:
        step = partial(_decode, self.model, state, slots, tokens, params)
        if self.model.device.type != "cuda":
            return step
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.model.device):
            here, side = torch.cuda.current_stream(), torch.cuda.Stream()
            before = state.rows.clone()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                step()  # libraries set themselves up at a first call, which can't be recorded
            here.wait_stream(side)
            state.rows.copy_(before)  # so that the step can be repeated
            with torch.cuda.graph(graph, pool=state.pool, stream=side, capture_error_mode="thread_local"):
                step()
        return graph.replay

    def _place(self, cache: SlotCache) -> SlotState:
        """Give the rows of a cache slots: the smallest free state that is large enough, else a new one."""
        rows, span = len(cache), cache.span
        free = [state for state in self.states if state.cache is None and state.slots >= rows and state.tokens >= span]
        if free:
            state = min(free, key=lambda state: state.size)
        else:
            covered = [s for s in self.states if s.cache is None and s.slots <= rows and s.tokens <= span]
            self.states = [state for state in self.states if state not in covered]
            self._make_room(rows * span)
            state = SlotState(self.model, rows, span)
            self.states.append(state)
        cache.move_into(state)
        return state

    def _grow(self, cache: SlotCache, rows: int, span: int) -> None:
        """Make the state of a cache large enough, with room for more where the budget has it."""
        state = cache.state
        assert state is not None, "one batch begins at a time, and gets slots before the next"
        if state.slots >= rows and state.tokens >= span:
            return
        self._make_room(rows * span - state.size)
        roomy = _power_of_two(max(state.slots, rows)), _power_of_two(max(state.tokens, span))
        fits = roomy[0] * roomy[1] + sum(other.size for other in self.states if other is not state) <= self.budget
        state.resize(*(roomy if fits else (rows, span)), rows=len(cache))

    def _make_room(self, size: int) -> None:
        """Drop free states, then what the others have in excess, if `size` more tokens would not fit the budget."""
        if sum(state.size for state in self.states) + size <= self.budget:
            return
        self.states = [state for state in self.states if state.cache is not None]
        for state in self.states:
            cache = state.cache
            if cache is not None and state.size > cache.tokens:
                state.resize(len(cache), cache.span, rows=len(cache))


class SlotState:
    """Room for `slots` sequences of `tokens` tokens, the tensors of a step, and the graphs recorded on it.

    `layers`: per layer keys and values `[2, slots, K, tokens, Dh]`, of the model's `kv_dtype`.
    `rows` `[3, slots]`: each row's last token, its position, and the index of its uniform number in `uniforms`
    `[slots, tokens]`. `logits` `[slots, V]` and `drawn` `[slots, 2]` are what a step gave.
    `graphs`: by the slots and tokens that they cover, and how they sample. It is free once its cache is gone.
    """

    def __init__(self, model: Decoder, slots: int, tokens: int) -> None:
        c = model.config
        empty = torch.empty(2, 0, c.num_kv_heads, 0, c.head_dim, device=model.device, dtype=model.kv_dtype)
        self.layers = [empty] * c.num_layers
        self.vocab_size, self.device = c.vocab_size, model.device
        self.owner: weakref.ref[SlotCache] | None = None
        self.resize(slots, tokens, rows=0)

    def resize(self, slots: int, tokens: int, rows: int) -> None:
        """Move the first `rows` slots to new tensors. If that fails, it has no slots and nothing can be decoded."""
        self.drop_graphs()
        self.slots = self.tokens = 0
        layers, self.layers = self.layers, []
        for index, old in enumerate(layers):
            new = old.new_zeros(2, slots, old.shape[2], tokens, old.shape[4])
            width = min(tokens, old.shape[3])
            new[:, :rows, :, :width] = old[:, :rows, :, :width]
            layers[index] = new
        self.rows = torch.zeros(3, slots, dtype=torch.int64, device=self.device)
        self.next, self.positions, self.index = self.rows
        self.uniforms = torch.zeros(slots, tokens, dtype=torch.float64, device=self.device)
        self.drawn = torch.zeros(slots, 2, dtype=torch.float64, device=self.device)
        self.logits = torch.zeros(slots, self.vocab_size, device=self.device)
        self.slots, self.tokens, self.layers = slots, tokens, layers

    def load(self, batch: Batch) -> None:
        """Copy in what a step reads of each row, unless the last one left it here."""
        for name in ("next", "positions", "index", "uniforms"):
            here, mine = getattr(self, name)[: len(batch)], getattr(batch, name)
            if here.data_ptr() != mine.data_ptr():
                width = min(here.shape[-1], mine.shape[-1])  # of uniforms; other rows have as many numbers
                here[..., :width] = mine[..., :width]

    def moved(self, batch: Batch, sampled: bool) -> None:
        """Give a batch what a step left here; `sampled`: its next tokens too."""
        rows = len(batch)
        _cache(batch).moved()
        batch.next, batch.positions, batch.index = self.rows[:, :rows]
        batch.uniforms, batch.logits = self.uniforms[:rows], self.logits[:rows]
        batch.drawn = self.drawn[:rows] if sampled else None

    def drop_graphs(self) -> None:
        """Drop all graphs. The graphs of one state share the memory of their results; a pool serves no second set."""
        self.graphs: dict[tuple[int, int, tuple | None], Callable[[], object]] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    @property
    def size(self) -> int:
        return self.slots * self.tokens

    @property
    def cache(self) -> SlotCache | None:
        return self.owner and self.owner()


class SlotCache:
    """Keys and values of B sequences: in the first B slots of `state`, or, until then, where prefill left them.

    `lengths` `[B]`: tokens so far; `ends` `[B]`: tokens at most.
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
        """Return what it needs, in `kv_bytes_per_token`; its state may have more, which the runner can take back."""
        return len(self) * self.span

    def tokens_joined(self, other: SlotCache, max_new: int = 0) -> int:
        return (len(self) + len(other)) * max(self.span, other.span)

    def moved(self) -> None:
        self.lengths = self.lengths + 1

    def keep(self, rows: np.ndarray) -> None:
        self.lengths, self.ends = self.lengths[rows], self.ends[rows]
        if self.state is None:
            self.prompt_of_row = self.prompt_of_row[rows]
            return
        index = upload(rows, self.state.device)
        for layer in self.state.layers:
            layer[:, : len(rows)] = layer.index_select(1, index)

    def join(self, other: SlotCache, max_new: int) -> None:
        """Take in the rows of `other` behind its own; a state has enough room for both."""
        assert self.state is not None, "one batch begins at a time, and gets slots before the next"
        other.write(self.state, len(self))
        self.lengths = np.concatenate([self.lengths, other.lengths])
        self.ends = np.concatenate([self.ends, other.ends])

    def move_into(self, state: SlotState) -> None:
        self.write(state, 0)
        self.state, self.prompts, self.prompt_of_row = state, [], np.array([], dtype=np.int64)
        state.owner = weakref.ref(self)

    def write(self, state: SlotState, begin: int) -> None:
        """Copy the rows into the slots from `begin` on, with zeros behind them."""
        end = begin + len(self)
        assert end <= state.slots and self.span <= state.tokens
        if self.state is not None:
            width = min(state.tokens, self.state.tokens)
            for mine, layer in zip(self.state.layers, state.layers, strict=True):
                layer[:, begin:end] = 0
                layer[:, begin:end, :, :width] = mine[:, : len(self), :, :width]
            return
        ends = np.cumsum([len(prompt.ids) for prompt in self.prompts])
        column = np.concatenate([np.arange(length) for length in self.lengths])
        source = column + np.repeat(ends[self.prompt_of_row] - self.lengths, self.lengths)
        slot = np.repeat(np.arange(begin, end), self.lengths)
        where = upload(np.stack([source, slot, column]), state.device)
        source_N, slot_N, column_N = where
        for index, layer in enumerate(state.layers):
            layer[:, begin:end] = 0
            for which in (0, 1):
                stored = torch.cat([prompt.layers[index][which] for prompt in self.prompts])
                layer[which][slot_N, :, column_N] = stored.index_select(0, source_N)


def _decode(model: Decoder, state: SlotState, slots: int, tokens: int, params: SamplingParams | None) -> None:
    """Decode one step of the first slots, which see their first `tokens`: from `rows` to `logits`, and with `params` on
    to `drawn` and the next token.

    Nothing here may wait for the device, or depend on what it computes. Slots without a row, and rows that have ended,
    may stand anywhere: they write to their own slot.
    """
    ids, positions, index = state.rows[:, :slots]
    here = positions.clamp(max=tokens - 1)
    hidden_BD = model.hidden(ids, here, _SlotAttention(state.layers, here, tokens))
    logits_BV = head_logits(hidden_BD, model.head_weight, model.precision, out=state.logits[:slots])
    state.rows[1:, :slots] += 1
    index.clamp_(max=state.tokens - 1)
    if params is not None:
        state.drawn[:slots] = draw(logits_BV, state.uniforms, index, params)
        ids.copy_(state.drawn[:slots, 0])


class _SlotAttention:
    """Attention of one new token per slot, at these positions `[B]`; stores its key and value first.

    Scores and sums are fp32 within SDPA's fused kernels; a CPU's, for bf16, are not as exact.
    """

    def __init__(self, layers: list[Tensor], positions: Tensor, tokens: int) -> None:
        device = positions.device
        self.layers, self.positions, self.tokens = layers, positions, tokens
        self.rows = torch.arange(len(positions), device=device)
        self.dtype = torch.float32 if device.type == "cpu" else layers[0].dtype
        future = torch.arange(tokens, device=device) > positions[:, None]
        self.mask = torch.zeros(future.shape, device=device, dtype=self.dtype).masked_fill_(future, float("-inf"))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        stored = self.layers[layer][:, : len(q), :, : self.tokens]
        stored[0][self.rows, :, self.positions] = k
        stored[1][self.rows, :, self.positions] = v
        keys, values = stored.to(self.dtype)  # each [B, K, tokens, Dh]
        # The heads that share keys stand where SDPA has a sequence's tokens: its fused kernels with a mask know no
        # groups of heads, and the others would copy the keys.
        queries = q.to(self.dtype).unflatten(1, (k.shape[1], -1))  # [B, K, G, Dh]
        mask = self.mask[:, None, None].expand(-1, *queries.shape[1:3], -1)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).flatten(1, 2).to(q.dtype)


def _pair_to_join(batches: list[Batch], budget: int) -> tuple[Batch, Batch] | None:
    """Return the smallest two batches that fit the budget and each other, first the one that has slots."""
    order = sorted(batches, key=lambda batch: (_cache(batch).state is not None, len(batch)), reverse=True)
    total = sum(batch.cache.tokens for batch in batches)
    for pair in reversed(list(combinations(order, 2))):
        first, second = (_cache(batch) for batch in pair)
        apart, joined = first.tokens + second.tokens, first.tokens_joined(second)
        if total - apart + joined <= budget and joined <= MAX_PADDING * apart:
            return pair
    return None


def _cache(batch: Batch) -> SlotCache:
    return cast(SlotCache, batch.cache)


def _power_of_two(x: int) -> int:
    return 1 << (x - 1).bit_length()
