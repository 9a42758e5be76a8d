"""The bf16 product rounds where it says it does; the rotary table grows."""

from __future__ import annotations

import torch
from torch import Tensor

from hone.model.ops import bf16_linear, bf16_mlp, swiglu
from hone.model.presets import tiny_config
from hone.model.rope import RotaryTable


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def test_bf16_linear_rounds_inputs_and_products_only() -> None:
    x, weight, bias = randn(9, 16), randn(12, 16, seed=1), randn(12, seed=2)
    y = bf16_linear(x, weight, bias, weight.detach().bfloat16())
    assert y.dtype == torch.float32
    assert torch.equal(y, (x.bfloat16() @ weight.bfloat16().T).float() + bias)
    upstream = randn(9, 12, seed=3).detach()
    grad_x, grad_weight, grad_bias = torch.autograd.grad(y, [x, weight, bias], upstream)
    assert torch.equal(grad_x, (upstream.bfloat16() @ weight.bfloat16()).float())
    assert torch.equal(grad_weight, (upstream.bfloat16().T @ x.bfloat16()).float())
    assert torch.equal(grad_bias, upstream.sum(0))


def test_rotary_table_grows_without_changing_what_it_held() -> None:
    table = RotaryTable(tiny_config())
    before = table(torch.tensor([3, 0, 200]))
    cos, sin = table(torch.tensor([3, 0, 200, 5000]))
    assert torch.equal(before[0], cos[:3]) and torch.equal(before[1], sin[:3])
    angles = 5000 / 10000 ** (torch.arange(16, dtype=torch.float64) / 16)
    torch.testing.assert_close(cos[3, 0].double(), angles.cos().repeat(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(sin[3, 0].double(), angles.sin(), atol=1e-3, rtol=0)


def test_bf16_mlp_is_the_fp32_mlp_up_to_bf16_rounding() -> None:
    """37 rows are padded to 48: the padding reaches neither the result nor a gradient."""
    x, gate_up, down = randn(37, 24), randn(2 * 40, 24, seed=1), randn(24, 40, seed=2)
    upstream = randn(37, 24, seed=3).detach()
    actual = bf16_mlp(x, gate_up, down, gate_up.detach().bfloat16(), down.detach().bfloat16())
    expected = swiglu(x @ gate_up.T) @ down.T
    gradients = [torch.autograd.grad(y, [x, gate_up, down], upstream) for y in (actual, expected)]
    for ours, exact in [(actual, expected), *zip(*gradients, strict=True)]:
        assert ours.dtype == torch.float32
        assert (ours - exact).norm() / exact.norm() < 1e-2
    with torch.no_grad():
        assert torch.equal(actual, bf16_mlp(x, gate_up, down, gate_up.bfloat16(), down.bfloat16()))
