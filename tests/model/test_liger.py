"""Liger's kernels, which a GPU takes where they are installed, against torch's: by Triton's interpreter, on the CPU.

It can't compute in bf16, so fp16 stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from hone.model import fusion, ops

pytestmark = pytest.mark.triton
HEADS, SIZE, INNER = (3, 1), 16, 48


@pytest.fixture
def use_liger(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Have CPU tensors take Liger's kernels, or torch's."""
    kernels = fusion._liger()
    assert kernels is not None
    return lambda on: monkeypatch.setattr(ops, "liger", lambda x: kernels if on else None)


def results(function: Callable[..., object], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return values, and the gradients that random ones of the values give."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    out = out if isinstance(out, tuple) else (out,)
    generator = torch.Generator().manual_seed(1)
    ups = [torch.randn(y.shape, generator=generator).to(y.dtype) for y in out]
    return [*(y.detach() for y in out), *torch.autograd.grad(out, inputs, ups)]


def apart(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a.float() - b.float()).abs().max()) for a, b in zip(some, others, strict=True))


def rotated(dtype: torch.dtype, normed: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(9, (HEADS[0] + 2 * HEADS[1]) * SIZE, generator=generator).to(dtype)
    weights = [torch.randn(sum(HEADS), SIZE, generator=generator).to(dtype)] if normed else []
    angles = torch.randn(9, 1, SIZE // 2, generator=generator)
    cos, sin = angles.cos().repeat(1, 1, 2), angles.sin()

    def compute(qkv: Tensor, weight: Tensor | None = None) -> tuple[Tensor, ...]:
        # The copy that a GPU makes of what the kernel overwrites.
        return ops.split_and_rotate(qkv.float().clone() if weight is None else qkv, weight, cos, sin, HEADS, 1e-6)

    return results(compute, [qkv, *weights])


def activated(dtype: torch.dtype) -> list[Tensor]:
    gate_up = torch.randn(9, 2 * INNER, generator=torch.Generator().manual_seed(0)).to(dtype)
    return results(ops.swiglu, [gate_up])


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float16, 4e-3)])
def test_values_and_gradients_are_those_of_torch(use_liger, dtype: torch.dtype, bound: float) -> None:
    """In fp16 torch rounds in between, so its last bit differs."""
    for compute in (lambda: rotated(dtype, True), lambda: rotated(dtype, False), lambda: activated(dtype)):
        use_liger(False)
        expected = compute()
        use_liger(True)
        assert apart(compute(), expected) <= bound
