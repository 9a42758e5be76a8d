"""Matrix products in bf16 around an fp32 residual stream, as autograd functions with hand-written gradients.

On a CPU rows of zeros are appended to the bf16 operands, see `padded_rows`. Where no cast of a weight is kept (weights
in shards), forward and backward each make their own: from one to the other a weight in shards takes no memory.

Shapes: N tokens of all sequences end to end, K input size, F intermediate size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hone.model.ops import swiglu_forward, swiglu_grad
from hone.model.packed import linear, padded_rows


def to_bf16(x: Tensor) -> Tensor:
    """[N, K] in bf16, on a CPU with rows of zeros appended: the cast makes a copy in any case, so they are free."""
    rows = padded_rows(x.shape[0])
    if x.device.type != "cpu" or rows == x.shape[0]:
        return x.bfloat16()
    padded = x.new_empty(rows, x.shape[1], dtype=torch.bfloat16)
    padded[: x.shape[0]] = x
    padded[x.shape[0] :] = 0
    return padded


def _bf16_linear(x: Tensor, bias: Tensor | None, weight_bf16: Tensor) -> tuple[Tensor, Tensor]:
    """The product in fp32, and the bf16 input that its gradient needs."""
    x_bf16 = to_bf16(x)
    y = linear(x_bf16, weight_bf16)[: x.shape[0]].float()
    return (y if bias is None else y.add_(bias)), x_bf16


def _cast(weight: Tensor, kept_bf16: Tensor | None) -> Tensor:
    return weight.bfloat16() if kept_bf16 is None else kept_bf16


class _Bf16Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weight_bf16: Tensor | None) -> Tensor:
        y, x_bf16 = _bf16_linear(x, bias, _cast(weight, weight_bf16))
        ctx.save_for_backward(x_bf16, weight if weight_bf16 is None else None, weight_bf16)
        ctx.has_bias = bias is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_bf16, weight, weight_bf16 = ctx.saved_tensors
        weight_bf16 = _cast(weight, weight_bf16)
        grad_bf16 = to_bf16(grad)
        grad_x = linear(grad_bf16, weight_bf16.T)[: grad.shape[0]].float() if ctx.needs_input_grad[0] else None
        grad_weight = linear(grad_bf16.T, x_bf16.T).float() if ctx.needs_input_grad[1] else None
        grad_bias = grad.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        return grad_x, grad_weight, grad_bias, None


def bf16_linear(x: Tensor, weight: Tensor, bias: Tensor | None, weight_bf16: Tensor | None) -> Tensor:
    """x Wᵀ + b with fp32 input, parameters and result, whose three products (output, dx, dW) are taken in bf16.

    `weight_bf16` is the cast of `weight`, which the caller keeps, for it changes only once a step; None: none is kept.
    """
    return _Bf16Linear.apply(x, weight, bias, weight_bf16)  # pyright: ignore[reportReturnType]


def _bf16_mlp(x: Tensor, gate_up_bf16: Tensor, down_bf16: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The MLP's result in fp32, and what its gradient needs: input, fused projection and activation, all bf16."""
    x_bf16 = to_bf16(x)
    gate_up = linear(x_bf16, gate_up_bf16)
    activation = swiglu_forward(gate_up)
    return linear(activation, down_bf16)[: x.shape[0]].float(), x_bf16, gate_up, activation


class _Bf16MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, gate_up_bf16: Tensor | None, down_bf16: Tensor | None
    ) -> Tensor:
        y, *saved = _bf16_mlp(x, _cast(gate_up, gate_up_bf16), _cast(down, down_bf16))
        weights = (gate_up, down) if gate_up_bf16 is None else (gate_up_bf16, down_bf16)
        ctx.save_for_backward(*saved, *weights)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x_bf16, gate_up, activation, gate_up_weight, down_weight = ctx.saved_tensors
        grad_bf16 = to_bf16(grad)
        grad_down = linear(grad_bf16.T, activation.T).float()
        grad_gate_up = swiglu_grad(linear(grad_bf16, down_weight.bfloat16().T), gate_up)
        grad_x = linear(grad_gate_up, gate_up_weight.bfloat16().T)[: grad.shape[0]].float()
        return grad_x, linear(grad_gate_up.T, x_bf16.T).float(), grad_down, None, None


def bf16_mlp(x: Tensor, gate_up: Tensor, down: Tensor, gate_up_bf16: Tensor | None, down_bf16: Tensor | None) -> Tensor:
    """down(silu(gate(x)) * up(x)) without biases: fp32 in and out, all between in bf16.

    The activation is the input of a bf16 product in any case; computing it in bf16 too saves casting [N, 2F] to fp32
    and back, forward and backward. `…_bf16` are the kept casts of the weights, both None if none are kept.
    """
    return _Bf16MLP.apply(x, gate_up, down, gate_up_bf16, down_bf16)  # pyright: ignore[reportReturnType]
