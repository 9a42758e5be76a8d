"""Packed weights: the plain product's numbers, and never those of an older weight."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from hone.config.shared import InitConfig
from hone.model import decoder as decoder_module
from hone.model import packed as packed_module
from hone.model.attention import PackedAttention
from hone.model.packed import PackedWeight, padded_rows
from hone.model.presets import random_decoder, tiny_config


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5, 16, 33])
@pytest.mark.parametrize("biased", [False, True])
def test_the_product_is_the_plain_one(dtype, rows, biased, monkeypatch):
    monkeypatch.setattr(packed_module, "MIN_FP32_SIZE", 0)
    weight, bias = random(96, 64, dtype=dtype), random(96, dtype=dtype, seed=1) if biased else None
    x = random(rows, 64, dtype=dtype, seed=2)
    with torch.no_grad():
        got, expected = PackedWeight().product(x, weight, bias), F.linear(x, weight, bias)
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


def test_it_follows_its_weight():
    """Written to in place, replaced by another tensor, or given other storage: the product is of what is there now."""
    weight, x, packed = random(96, 64, dtype=torch.bfloat16), random(16, 64, dtype=torch.bfloat16), PackedWeight()
    with torch.no_grad():
        packed.product(x, weight)
        weight.mul_(-1)
        assert torch.equal(packed.product(x, weight), F.linear(x, weight))
        other = random(96, 64, dtype=torch.bfloat16, seed=5)
        assert torch.equal(packed.product(x, other), F.linear(x, other))
        other.data = random(96, 64, dtype=torch.bfloat16, seed=6)
        assert torch.equal(packed.product(x, other), F.linear(x, other))
        copied = copy.deepcopy(packed)
        assert torch.equal(copied.product(x, weight), F.linear(x, weight))


def test_few_numbers_of_rows_occur():
    assert [padded_rows(rows) for rows in (1, 16, 17, 128, 129, 1000)] == [16, 16, 32, 128, 144, 1024]


@pytest.mark.parametrize("precision", ["bf16", "bf16_linear"])
def test_a_large_model_samples_without_packed_weights(precision, monkeypatch):
    """The same logits either way, and nothing is packed beyond the limit."""
    config = tiny_config(InitConfig(layers=1, hidden=48, heads=4, kv_heads=2, head_dim=16, intermediate=64))
    packs = random_decoder(config, 0, precision)
    monkeypatch.setattr(decoder_module, "MAX_PACKED_BYTES", 0)
    plain = random_decoder(config, 0, precision)
    tokens, logits = torch.arange(10, 26), []
    with torch.no_grad():
        for model in (packs, plain):
            logits.append(model.logits(model.hidden(tokens, torch.arange(16), PackedAttention([16]))))
    assert torch.equal(*logits)
    assert packs.layers[0].qkv_proj.packed._packed is not None
    assert plain.layers[0].qkv_proj.packed._packed is None
