"""The decoder's element-wise operations, as autograd functions with hand-written gradients.

On a CPU, PyTorch's RMS norm takes 2.5 times as long as this one, and RoPE by autograd even longer, because each
intermediate result is stored. Norm and RoPE always compute in fp32. Sampling uses plain functions that give the same
bits, because an autograd function costs 10 µs a call even without gradients.

On a GPU, training and sampling use PyTorch's kernel for RMS norms and, if Liger is installed, Liger's kernels for RoPE
and SwiGLU. These kernels use no atomics, and a row's bits don't depend on other rows.

The last part of this module has bf16 matrix products around an fp32 residual stream. If a weight's bf16 cast is not
stored (sharded weights), the forward and the backward pass each make a cast, which takes no memory in between.

Shapes: N tokens of all sequences end to end, D hidden size, F intermediate size, H query heads, K key/value heads, Dh
head size.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from hone.hardware import padded_rows
from hone.model.fusion import fused, has_fused_norm, is_compiled, liger
from hone.model.packed import linear


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Compute 1 / sqrt(mean(x²) + eps) over the last dimension. This dimension stays, with size 1."""
    return torch.linalg.vecdot(x, x).div_(x.shape[-1]).add_(eps).rsqrt_().unsqueeze(-1)


def _rms_norm_grad(grad: Tensor, normed: Tensor, weight: Tensor, inverse_rms: Tensor) -> Tensor:
    """Compute dx = r (g w - x̂ mean(g w x̂)), the gradient of y = w x̂ with x̂ = x r (`normed`), r = `inverse_rms`."""
    grad_x = grad * weight
    if has_fused_norm(grad):
        shape, ones = grad.shape[-1:], torch.ones_like(inverse_rms)
        grad_x, _ = torch.ops.aten._fused_rms_norm_backward(grad_x, normed, shape, ones, None, [True, False])
        return grad_x.mul_(inverse_rms)
    dot = torch.linalg.vecdot(grad_x, normed).div_(normed.shape[-1]).unsqueeze(-1)
    return grad_x.addcmul_(normed, dot, value=-1).mul_(inverse_rms)


class _EmbeddingSummedInFP32(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.size, ctx.dtype = weight.shape[0], weight.dtype
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (ids,) = ctx.saved_tensors
        return None, torch.ops.aten.embedding_dense_backward(grad.float(), ids, ctx.size, -1, False).to(ctx.dtype)


def embedding(ids_N: Tensor, weight_VD: Tensor) -> Tensor:
    """Look up rows `[N, D]`. A row's gradient is summed over tokens in fp32, because bf16 loses most of a long sum."""
    if weight_VD.dtype == torch.float32 or not torch.is_grad_enabled():
        return F.embedding(ids_N, weight_VD)
    return _EmbeddingSummedInFP32.apply(ids_N, weight_VD)  # pyright: ignore[reportReturnType]


@fused
def _norm_forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    inverse_rms = _inverse_rms(x.float(), eps)
    normed = x * inverse_rms
    return (normed * weight).to(x.dtype), normed, inverse_rms


@fused
def _norm_backward(grad: Tensor, normed: Tensor, weight: Tensor, inverse_rms: Tensor) -> tuple[Tensor, Tensor]:
    grad_f32 = grad.float()
    grad_weight = torch.linalg.vecdot(grad_f32, normed, dim=0).to(weight.dtype)
    return _rms_norm_grad(grad_f32, normed, weight, inverse_rms).to(grad.dtype), grad_weight


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, normed, inverse_rms = _norm_forward(x, weight, eps)
        ctx.save_for_backward(normed, weight, inverse_rms)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return *_norm_backward(grad, *ctx.saved_tensors), None


@fused
def _norm_inference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)  # the same bits, in fewer operations


def rms_norm(x_ND: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean(x²) + eps) · weight, in x's dtype (Zhang & Sennrich 2019)."""
    if not torch.is_grad_enabled() or has_fused_norm(x_ND):
        return _norm_inference(x_ND, weight_D, eps)
    return _RMSNorm.apply(x_ND, weight_D, eps)  # pyright: ignore[reportReturnType]


@fused
def _add_and_norm_inference(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, F.rms_norm(total, weight.shape, weight, eps)


def add_and_norm(x_ND: Tensor, y_ND: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if not torch.is_grad_enabled():
        return _add_and_norm_inference(x_ND, y_ND, weight_D, eps)
    total = x_ND + y_ND
    return total, rms_norm(total, weight_D, eps)


@fused
def _split_rotate_forward(
    qkv: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, heads: tuple[int, int], eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    num_q, num_qk = heads[0], heads[0] + heads[1]
    all_heads = qkv.view(qkv.shape[0], num_qk + heads[1], -1)
    x = all_heads[:, :num_qk].to(torch.float32, copy=weight is None and qkv.is_cuda)  # `_rotate` may write to it
    normed = inverse_rms = None
    if weight is not None:
        if has_fused_norm(x):
            normed, inverse_rms = torch.ops.aten._fused_rms_norm(x, x.shape[-1:], None, eps)
        else:
            inverse_rms = _inverse_rms(x, eps)
            normed = x * inverse_rms
        x = normed * weight
    rotated = _rotate(x, cos, sin).to(dtype)
    # v alone is stored for attention's gradient: as a view it would hold all of qkv.
    v = all_heads[:, num_qk:].to(dtype).contiguous()
    return rotated[:, :num_q], rotated[:, num_q:], v, normed, inverse_rms


@fused
def _split_rotate_backward(
    grads: tuple[Tensor, Tensor, Tensor],
    dtype: torch.dtype,
    cos: Tensor,
    sin: Tensor,
    weight: Tensor | None,
    normed: Tensor | None,
    inverse_rms: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    grad_q, grad_k, grad_v = grads
    grad = _rotate(torch.cat([grad_q, grad_k], dim=1).float(), cos, sin, back=True)
    grad_weight = None
    if weight is not None and normed is not None and inverse_rms is not None:
        grad_weight = torch.linalg.vecdot(grad, normed, dim=0).to(weight.dtype)
        grad = _rms_norm_grad(grad, normed, weight, inverse_rms)
    return torch.cat([grad.to(dtype), grad_v.to(dtype)], dim=1).flatten(1), grad_weight


class _SplitRotate(torch.autograd.Function):
    """qkv [N, (H+2K)·Dh] → q [N, H, Dh], k and v [N, K, Dh]. RoPE on q and k, after a norm of each head if `weight`."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, *heads_eps_dtype: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, normed, inverse_rms = _split_rotate_forward(qkv, weight, cos, sin, *heads_eps_dtype)
        ctx.save_for_backward(cos, sin, weight, normed, inverse_rms)
        ctx.dtype = qkv.dtype
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor) -> tuple[Tensor | None, ...]:
        grad_qkv, grad_weight = _split_rotate_backward((grad_q, grad_k, grad_v), ctx.dtype, *ctx.saved_tensors)
        return grad_qkv, grad_weight, None, None, None, None, None


@fused
def _split_rotate_inference(
    qkv: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, heads: tuple[int, int], eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    qk, v = qkv.view(qkv.shape[0], heads[0] + 2 * heads[1], -1).split([heads[0] + heads[1], heads[1]], dim=1)
    x = qk.to(torch.float32, copy=weight is None and qkv.is_cuda)
    if weight is not None:
        x = F.rms_norm(x, x.shape[-1:], None, eps).mul_(weight)
    q, k = _rotate(x, cos, sin).to(dtype).split(list(heads), dim=1)
    return q, k, v.to(dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """Rotate the pairs (x[i], x[i + Dh/2]), by angles: `cos` [N, 1, Dh] (each value twice), `sin` [N, 1, Dh/2].

    If `back` is true, rotate by the negative angle. On a GPU x may be overwritten.
    """
    if kernels := liger(x):
        rope = kernels.rope.rope_backward if back else kernels.rope.rope_forward
        unused = x.new_empty(1, 1, len(x), x.shape[-1])  # it rotates two tensors, in place
        return rope(x.transpose(0, 1).unsqueeze(0), unused, cos.squeeze(1), sin.squeeze(1))[0][0].transpose(0, 1)
    out = x * cos
    (low, high), (out_low, out_high) = x.chunk(2, dim=-1), out.chunk(2, dim=-1)
    out_low.addcmul_(high, sin, value=1 if back else -1)
    out_high.addcmul_(low, sin, value=-1 if back else 1)
    return out


def split_and_rotate(
    qkv: Tensor,
    norm_weight: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    heads: tuple[int, int],
    eps: float,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Split a fused projection into heads. Normalise q and k if `norm_weight` is given, and apply RoPE to q and k.

    `qkv` [N, (H+2K)·Dh]; `norm_weight` [H+K, Dh] or None; `cos` [N, 1, Dh], each value twice, and `sin`
    [N, 1, Dh/2], both float32; `heads` (H, K).
    Returns q [N, H, Dh], k [N, K, Dh], v [N, K, Dh] in `dtype`, by default qkv's. RoPE: Su et al. 2021, in the
    half-split layout of Llama and Qwen.
    """
    arguments = qkv, norm_weight, cos, sin, heads, eps, dtype or qkv.dtype
    if torch.is_grad_enabled():
        return _SplitRotate.apply(*arguments)  # pyright: ignore[reportReturnType]
    return _split_rotate_inference(*arguments)


def swiglu_forward(gate_up: Tensor) -> Tensor:
    if kernels := liger(gate_up):
        return kernels.swiglu.swiglu_fused_gate_up_forward(gate_up)[1]
    return _swiglu(gate_up)


@fused
def _swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@fused
def _swiglu_grad(grad: Tensor, gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.cat([torch.ops.aten.silu_backward(grad * up, gate), grad * F.silu(gate)], dim=-1)


def swiglu_grad(grad: Tensor, gate_up: Tensor) -> Tensor:
    """Compute the gradient [N, 2F] of the input of `swiglu`, from the gradient `grad` [N, F] of the result.

    Without compilation, this works in place, to the same bits: `_swiglu_grad` takes twice as long on a CPU.
    """
    if is_compiled():
        return _swiglu_grad(grad, gate_up)
    if kernels := liger(gate_up):
        return kernels.swiglu.swiglu_fused_gate_up_backward(gate_up, grad.contiguous())
    gate, up = gate_up.chunk(2, dim=-1)
    grad_gate_up = torch.empty_like(gate_up)
    grad_gate, grad_up = grad_gate_up.chunk(2, dim=-1)
    scratch = F.silu(gate)
    torch.mul(grad, scratch, out=grad_up)
    torch.mul(grad, up, out=scratch)
    torch.ops.aten.silu_backward.grad_input(scratch, gate, grad_input=grad_gate)
    return grad_gate_up


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return swiglu_forward(gate_up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return swiglu_grad(grad, ctx.saved_tensors[0])


def swiglu(gate_up: Tensor) -> Tensor:
    """Compute silu(gate) · up `[N, F]` from a fused projection `[N, 2F]` (Shazeer 2020)."""
    if not torch.is_grad_enabled():
        return swiglu_forward(gate_up)
    return _SwiGLU.apply(gate_up)  # pyright: ignore[reportReturnType]


def to_bf16(x: Tensor) -> Tensor:
    """Cast `[N, D]` to bf16. On a CPU, append rows of zeros up to the size at which more rows cost no time."""
    rows = padded_rows(x.shape[0])
    if x.device.type != "cpu" or rows == x.shape[0]:
        return x.bfloat16()
    padded = x.new_empty(rows, x.shape[1], dtype=torch.bfloat16)
    padded[: x.shape[0]] = x
    padded[x.shape[0] :] = 0
    return padded


def _cast(weight: Tensor, kept_bf16: Tensor | None) -> Tensor:
    return weight.bfloat16() if kept_bf16 is None else kept_bf16


class _Bf16Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weight_bf16: Tensor | None) -> Tensor:
        x_bf16 = to_bf16(x)
        y = linear(x_bf16, _cast(weight, weight_bf16))[: x.shape[0]].float()
        ctx.save_for_backward(x_bf16, weight if weight_bf16 is None else None, weight_bf16)
        ctx.has_bias = bias is not None
        return y if bias is None else y.add_(bias)

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
    """Compute x Wᵀ + b. Input, parameters and result are fp32; the products (for output, dx and dW) are in bf16.

    `weight_bf16` is a stored cast of `weight`. If it is None, the cast is made here.
    """
    return _Bf16Linear.apply(x, weight, bias, weight_bf16)  # pyright: ignore[reportReturnType]


class _Bf16MLP(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gate_up: Tensor, down: Tensor, gate_up_bf16: Tensor | None, down_bf16: Tensor | None
    ) -> Tensor:
        x_bf16 = to_bf16(x)
        fused = linear(x_bf16, _cast(gate_up, gate_up_bf16))
        activation = swiglu_forward(fused)
        weights = (gate_up, down) if gate_up_bf16 is None else (gate_up_bf16, down_bf16)
        ctx.save_for_backward(x_bf16, fused, activation, *weights)
        return linear(activation, _cast(down, down_bf16))[: x.shape[0]].float()

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
    """Compute down(silu(gate(x)) * up(x)) without biases: fp32 in and out, bf16 in between.

    The activation becomes the input of a bf16 product anyway. To compute it in bf16 saves casts of [N, 2F] to fp32 and
    back. `gate_up_bf16`, `down_bf16`: stored casts, or both None.
    """
    return _Bf16MLP.apply(x, gate_up, down, gate_up_bf16, down_bf16)  # pyright: ignore[reportReturnType]
