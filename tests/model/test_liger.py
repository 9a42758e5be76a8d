"""Liger's kernels, which a GPU takes where they are installed, against torch's: by Triton's interpreter, on the CPU.

It can't compute in bf16, so fp16 stands for it. Signatures are those of the versions that pyproject.toml allows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from hone.model import fusion, ops

pytestmark = pytest.mark.triton
HEADS, SIZE, INNER = (3, 1), 16, 48
SIGNATURES = {
    "rope_forward": "(q, k, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None)",
    "rope_backward": "(dq, dk, cos, sin, position_ids=None, unsqueeze_dim=1, rotary_dim=None)",
    "swiglu_fused_gate_up_forward": "(y)",
    "swiglu_fused_gate_up_backward": "(y, dc, in_place=False)",
}


@pytest.fixture
def use_liger(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Have CPU tensors take Liger's kernels, or torch's."""
    kernels = fusion._liger()
    assert kernels is not None
    return lambda on: monkeypatch.setattr(ops, "liger", lambda x: kernels if on else None)


def results(function: Callable[..., object], inputs: Sequence[Tensor], rows: int) -> list[Tensor]:
    """Return values, and the gradients that random ones of the values give."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    out = function(*inputs)
    out = out if isinstance(out, tuple) else (out,)
    generator = torch.Generator().manual_seed(1)
    ups = [torch.randn(9, *y.shape[1:], generator=generator)[:rows].to(y.dtype) for y in out]
    return [*(y.detach() for y in out), *torch.autograd.grad(out, inputs, ups)]


def apart(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((a.float() - b.float()).abs().max()) for a, b in zip(some, others, strict=True))


def rotated(dtype: torch.dtype, normed: bool, rows: int = 9) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(9, (HEADS[0] + 2 * HEADS[1]) * SIZE, generator=generator)[:rows].to(dtype)
    weights = [torch.randn(sum(HEADS), SIZE, generator=generator).to(dtype)] if normed else []
    angles = torch.randn(9, 1, SIZE // 2, generator=generator)[:rows]
    cos, sin = angles.cos().repeat(1, 1, 2), angles.sin()

    def compute(qkv: Tensor, weight: Tensor | None = None) -> tuple[Tensor, ...]:
        # The copy that a GPU makes of what the kernel overwrites.
        return ops.split_and_rotate(qkv.float().clone() if weight is None else qkv, weight, cos, sin, HEADS, 1e-6)

    return results(compute, [qkv, *weights], rows)


def activated(dtype: torch.dtype, rows: int = 9) -> list[Tensor]:
    gate_up = torch.randn(9, 2 * INNER, generator=torch.Generator().manual_seed(0))[:rows].to(dtype)
    return results(ops.swiglu, [gate_up], rows)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float16, 4e-3)])
def test_values_and_gradients_are_those_of_torch(use_liger, dtype: torch.dtype, bound: float) -> None:
    """In fp16 torch rounds in between, so its last bit differs."""
    for compute in (lambda: rotated(dtype, True), lambda: rotated(dtype, False), lambda: activated(dtype)):
        use_liger(False)
        expected = compute()
        use_liger(True)
        assert apart(compute(), expected) <= bound


def test_a_row_has_the_same_bits_whatever_rows_there_are(use_liger) -> None:
    """Values, and the gradients of inputs: those of weights are sums over rows."""
    use_liger(True)
    for all_rows, one in (
        (rotated(torch.float32, False), rotated(torch.float32, False, rows=1)),
        (activated(torch.float32), activated(torch.float32, rows=1)),
    ):
        assert all(torch.equal(a[:1], b) for a, b in zip(all_rows, one, strict=True))


def test_the_functions_take_what_they_are_given() -> None:
    kernels = fusion._liger()
    assert kernels is not None
    for name, expected in SIGNATURES.items():
        module = kernels.rope if name.startswith("rope") else kernels.swiglu
        assert str(inspect.signature(getattr(module, name))) == expected, name
