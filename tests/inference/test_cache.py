"""Attention to prompts stored once equals plain attention to each row's own copy of everything it has seen."""

import numpy as np
import pytest
import torch

from hone.inference.cache import KVCache
from hone.inference.engine import Engine
from hone.inference.invariant import InvariantPrefill
from hone.inference.memory import ROOM, kv_bytes_per_token
from hone.inference.prefill import Prefill, PrefillAttention
from hone.inference.types import Job

from ..trainer.storages import Storages
from .many_jobs import CONFIG, FREE, peaked

HEADS, KV_HEADS, HEAD_DIM, MAX_NEW = 4, 2, 8, 6


def random_qkv(generator, tokens):
    shapes = [(tokens, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


def plain_attention(q, k, v):
    """One query `[H, Dh]` over keys and values `[L, K, Dh]`, in float64."""
    k, v = (x.double().repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
    weights = (torch.einsum("hd,lhd->hl", q.double(), k) / HEAD_DIM**0.5).softmax(-1)
    return torch.einsum("hl,lhd->hd", weights, v).float()


class PlainRows:
    """What each row has seen so far, written out."""

    def __init__(self, k, v, lengths, prompt_of_row):
        segments = list(zip(k.split(lengths), v.split(lengths), strict=True))
        self.rows = [segments[prompt] for prompt in prompt_of_row]

    def step(self, q, k, v):
        self.rows = [
            (torch.cat([keys, k[i : i + 1]]), torch.cat([values, v[i : i + 1]]))
            for i, (keys, values) in enumerate(self.rows)
        ]
        return torch.stack([plain_attention(q[i], *row) for i, row in enumerate(self.rows)])


@pytest.mark.parametrize("lengths", [[5, 5, 5, 5], [3, 7, 1, 4]])
@pytest.mark.parametrize(
    "prompt_of_row",
    [
        [0, 0, 1, 1, 2, 2],  # equal groups in order: rows and slots coincide
        [2, 0, 1, 0, 1, 2],
        [0, 1, 2],
        [3, *[0] * 9, 1, 2],  # one large group among single rows is cut, and cut anew when a prompt leaves
    ],
)
def test_attention_equals_plain_attention_while_rows_leave(lengths, prompt_of_row):
    generator = torch.Generator().manual_seed(0)
    prefill = PrefillAttention(lengths)
    prompt_qkv = [random_qkv(generator, sum(lengths)) for _ in range(2)]
    for layer, qkv in enumerate(prompt_qkv):
        prefill(layer, *qkv)
    cache = KVCache([prefill.layers], lengths, np.array(prompt_of_row), MAX_NEW)
    plain = [PlainRows(k, v, lengths, prompt_of_row) for _, k, v in prompt_qkv]

    kept_rows = {2: range(1, len(prompt_of_row)), 4: [len(prompt_of_row) - 2]}
    for index in range(MAX_NEW):
        if index in kept_rows:
            kept = list(kept_rows[index])
            cache.keep(np.array(kept))
            for layer in plain:
                layer.rows = [layer.rows[row] for row in kept]
        for layer in range(2):
            qkv = random_qkv(generator, len(plain[layer].rows))
            torch.testing.assert_close(cache(layer, *qkv), plain[layer].step(*qkv), atol=2e-6, rtol=2e-6)
        cache.column += 1


@pytest.mark.parametrize("options", [{}, {"cuda_graphs": True}, {"batch_invariant": True}])
def test_keys_and_values_take_the_bytes_that_are_planned(options):
    """bf16 halves them in every layout, here filled to the last token."""
    sizes = {}
    for precision in ("fp32", "bf16_linear", "bf16"):
        engine = Engine(peaked(precision), **options)
        engine.add(Job((5,) * 31, 0, 33, FREE))
        for _ in range(32):
            engine.step()
        (batch,) = engine._batches
        if "cuda_graphs" in options:
            assert engine.runner.state.size == ROOM * 64
            stored = sum(layer.nbytes for layer in engine.runner.state.stored) // ROOM
        elif options:
            stored = sum(layer.nbytes for layer in batch.cache.layers)
        else:
            stored = sum(keys.nbytes + values.nbytes for keys, values in batch.cache.prompts)
            stored += sum(block.stored.nbytes for blocks in batch.cache.decoded for block in blocks)
        sizes[precision] = stored
        token = kv_bytes_per_token(CONFIG, precision, "cpu")
        assert stored == (64 if options else 31 + 32) * token, "31 tokens of a prompt, then blocks of 32"
    assert sizes["fp32"] == sizes["bf16_linear"] == 2 * sizes["bf16"]


@pytest.mark.parametrize("kind", [Prefill, InvariantPrefill])
@pytest.mark.parametrize("budget", [2**15, 128])
def test_a_prompt_holds_no_more_than_its_keys_and_values(kind, budget):
    """Together, one by one, and in chunks: views would hold queries as well."""
    prefill = kind(model := peaked(), 0)
    with torch.no_grad():
        model.hidden(torch.arange(8), torch.arange(8), PrefillAttention([8]))  # derives what it keeps
    with torch.no_grad(), Storages(model) as held:
        prompts = [prefill.begin((length,) * length) for length in (100, 90, 20)]
        prefill.advance(prompts, budget)
        for prompt in prompts:
            prompt.hidden = None
        assert held.now == 210 * kv_bytes_per_token(CONFIG, "fp32", "cpu")
