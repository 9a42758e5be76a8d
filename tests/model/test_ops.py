"""Each hand-written gradient equals autograd's of the plain formula; the bf16 product rounds where it says it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hone.model.ops import bf16_linear, bf16_mlp, rms_norm, split_and_rotate, swiglu
from hone.model.presets import tiny_config
from hone.model.rope import RotaryTable


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def assert_same(actual, expected, inputs: list[Tensor]) -> None:
    """Equal values, and equal gradients to every input under one random upstream gradient."""
    actual, expected = (x if isinstance(x, tuple) else (x,) for x in (actual, expected))
    gradients = []
    for outputs in (actual, expected):
        upstream = [randn(*out.shape, seed=9 + i).detach() for i, out in enumerate(outputs)]
        gradients.append(torch.autograd.grad(outputs, inputs, upstream))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(*gradients, atol=2e-5, rtol=1e-4)


def plain_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def test_rms_norm() -> None:
    x, weight = randn(11, 24), randn(24, seed=1)
    assert_same(rms_norm(x, weight, 1e-2), plain_norm(x, weight, 1e-2), [x, weight])


def test_swiglu() -> None:
    x = randn(11, 24)
    gate, up = x.chunk(2, -1)
    assert_same(swiglu(x), gate * gate.sigmoid() * up, [x])


@pytest.mark.parametrize("normed", [True, False])
def test_split_and_rotate(normed: bool) -> None:
    heads, head_dim, num_tokens = (3, 1), 8, 7
    qkv, weight = randn(num_tokens, 5 * head_dim), randn(4, head_dim, seed=1)
    angles = randn(num_tokens, 1, head_dim // 2, seed=2).detach()
    cos, sin = angles.cos(), angles.sin()

    def plain() -> tuple[Tensor, ...]:
        x = qkv.view(num_tokens, 5, head_dim)
        qk = plain_norm(x[:, :4], weight, 1e-3) if normed else x[:, :4]
        first, second = qk.chunk(2, -1)
        qk = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
        return qk[:, :3], qk[:, 3:], x[:, 4:]

    actual = split_and_rotate(qkv, weight if normed else None, cos.repeat(1, 1, 2), sin, heads, 1e-3)
    assert_same(actual, plain(), [qkv, weight] if normed else [qkv])


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


def test_values_are_the_same_bit_for_bit_without_gradients() -> None:
    """Sampling and training run the same arithmetic, whichever of the two ways a step is called."""
    x, weight, qkv = randn(9, 16), randn(16, seed=1), randn(9, 5 * 8, seed=2)
    qk_weight, angles, matrix = randn(4, 8, seed=3), randn(9, 1, 4, seed=4).detach(), randn(12, 16, seed=5)

    def outputs() -> list[Tensor]:
        return [
            rms_norm(x, weight, 1e-3),
            swiglu(x),
            bf16_linear(x, matrix, None, matrix.detach().bfloat16()),
            *split_and_rotate(qkv, qk_weight, angles.cos().repeat(1, 1, 2), angles.sin(), (3, 1), 1e-3),
        ]

    with torch.no_grad():
        plain = outputs()
    for with_grad, without in zip(outputs(), plain, strict=True):
        assert with_grad.grad_fn is not None and without.grad_fn is None
        assert torch.equal(with_grad, without)


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
