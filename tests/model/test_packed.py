"""Packed weights: the plain product's numbers, and never those of an older weight."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from hone.config.shared import InitConfig, OptimConfig
from hone.model import decoder as decoder_module
from hone.model import packed as packed_module
from hone.model.attention import PackedAttention
from hone.model.packed import PackedWeight
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.optim import Optimizer


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
    if dtype == torch.bfloat16 and rows == 16:
        assert torch.equal(got, expected)


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_sampling_follows_the_trainers_optimizer(precision, monkeypatch):
    """The fused optimizer leaves no trace on a parameter: after its step logits are those of a model packed anew."""
    monkeypatch.setattr(packed_module, "MIN_FP32_SIZE", 0)
    config = tiny_config(InitConfig(layers=1, hidden=48, heads=4, kv_heads=2, head_dim=16, intermediate=64))
    model = random_decoder(config, 0, precision)
    tokens = torch.arange(10, 26)

    def logits() -> torch.Tensor:
        return model.logits(model.hidden(tokens, torch.arange(16), PackedAttention([16])))

    with torch.no_grad():
        before = logits()
    optimizer = Optimizer(model, OptimConfig(lr=0.05))
    logits().log_softmax(-1)[:, 5].mean().neg().backward()
    optimizer.step(0.05)
    model.refresh()
    with torch.no_grad():
        after = logits()
        for module in model.modules():
            if isinstance(module, decoder_module.Linear):
                module.packed = PackedWeight()
        model.packed_head = PackedWeight()
        assert torch.equal(after, logits())
    assert (after - before).abs().max() > 0.1


class _Products(TorchDispatchMode):
    """Counts matrix products by the type of their operands."""

    def __init__(self) -> None:
        super().__init__()
        self.types: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.mkldnn._linear_pointwise):
            self.types[args[-1 if func.overloadpacket == torch.ops.aten.mm else 1].dtype] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["bf16_linear", "bf16"])
def test_a_cpu_without_bf16_kernels_multiplies_in_fp32_and_rounds_as_they_do(precision, monkeypatch):
    monkeypatch.setattr(packed_module, "_packs", lambda dtype: dtype == torch.float32)
    x, weight = random(48, 64, dtype=torch.bfloat16), random(96, 64, dtype=torch.bfloat16, seed=1)
    assert torch.equal(packed_module.linear(x, weight), (x.float() @ weight.float().T).bfloat16())
    model = random_decoder(tiny_config(), 0, precision)
    ids, positions = torch.arange(5, 25), torch.arange(20)
    with _Products() as products:
        model.logits(model.hidden(ids, positions, PackedAttention([20]))).sum().backward()
        with torch.no_grad():
            model.logits(model.hidden(ids, positions, PackedAttention([20])))
    assert products.types[torch.float32] > 20 and products.types[torch.bfloat16] == 0
