"""The vocabulary head: values and gradients against float64, whatever is kept or computed again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hone.model import head
from hone.model import packed as packed_module
from hone.model.head import head_logprobs
from hone.model.packed import PackedWeight
from hone.types import Ragged

TOKENS, HIDDEN, VOCAB = 50, 64, 700
# Relative error of the gradients: rounding of fp32, of bf16 products, and of logits in bf16 besides.
GRADIENT_ERROR = {"fp32": 3e-6, "bf16_linear": 5e-3, "bf16": 2e-2}
VALUE_ERROR = {"fp32": 2e-5, "bf16_linear": 2e-5, "bf16": 0.15}


def inputs(precision: str = "fp32", scale: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator) * scale
    weight = torch.randn(VOCAB, HIDDEN, generator=generator) * 0.3
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return hidden.to(dtype), weight.to(dtype), torch.randint(0, VOCAB, (TOKENS,), generator=generator)


def in_float64(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float, away: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Plain autograd on the softmax, cut where logits are `away`, where p log p counts 0 at p = 0."""
    away = torch.zeros(TOKENS, VOCAB, dtype=torch.bool) if away is None else away
    logprobs = (hidden @ weight.T / temperature).masked_fill(away, float("-inf")).log_softmax(-1)
    entropies = -(logprobs.exp() * logprobs.masked_fill(away, 0.0)).sum(-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), entropies


def backward(outputs: tuple[Tensor, Tensor], entropy: bool) -> None:
    weights = torch.linspace(-1, 2, TOKENS, dtype=outputs[0].dtype)
    loss = (outputs[0] * weights).sum()
    (loss + (outputs[1] * weights.flip(0)).sum() if entropy else loss).backward()


def error(value: Tensor, expected: Tensor) -> float:
    return float((value.double() - expected).norm() / expected.norm())


def kept_ids(targets: Tensor) -> tuple[Ragged, Tensor]:
    """Each token's target and 0 to 19 others, and where logits are cut away `[T, V]`; each third is not cut."""
    generator = torch.Generator().manual_seed(1)
    sets: list[list[int]] = []
    away = torch.zeros(TOKENS, VOCAB, dtype=torch.bool)
    for row, target in enumerate(targets.tolist()):
        if row % 3 == 0:
            sets.append([])
            continue
        sets.append(sorted({target, *torch.randperm(VOCAB // 2, generator=generator)[: row % 20].tolist()}))
        away[row] = True
        away[row, sets[-1]] = False
    return Ragged.of(sets), away


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("packed", [None, PackedWeight()])
@pytest.mark.parametrize("cache_bytes", [0, 2**20])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
@pytest.mark.parametrize(("temperature", "entropy"), [(1.0, False), (0.7, True)])
def test_values_and_gradients_are_those_of_float64(
    temperature: float,
    entropy: bool,
    precision: str,
    cut: bool,
    cache_bytes: int,
    packed: PackedWeight | None,
    chunked: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the whole vocabulary, or of the ids alone that were kept."""
    monkeypatch.setattr(packed_module, "MIN_FP32_SIZE", 0)
    if chunked:  # 7 rows at a time, the last one shorter
        monkeypatch.setattr(head, "MAX_LOGITS", 7 * VOCAB)
        monkeypatch.setattr(head, "CPU_LOGITS", 7 * VOCAB)
    hidden, weight, targets = inputs(precision)
    kept, away = kept_ids(targets) if cut else (None, None)
    exact = hidden.double().requires_grad_(), weight.double().requires_grad_()
    expected = in_float64(*exact, targets, temperature, away)
    backward(expected, entropy)
    given = hidden.requires_grad_(), weight.requires_grad_()
    found = head_logprobs(*given, targets, temperature, precision, cache_bytes, kept, packed)
    backward(found, entropy)
    assert packed is None or packed._source is given[1]
    for values, right in zip(found, expected, strict=True):
        assert values.dtype == torch.float32
        assert (values.detach() - right.detach()).abs().max() < VALUE_ERROR[precision]
    for tensor, right in zip(given, exact, strict=True):
        assert tensor.grad is not None and right.grad is not None and tensor.grad.dtype == tensor.dtype
        assert error(tensor.grad, right.grad) < GRADIENT_ERROR[precision]
    if kept is not None:
        alone = kept.counts == 1
        assert alone.sum() == 2 and not found[0][alone].any() and not found[1][alone].any()


@pytest.mark.parametrize("has_kernels", [True, False])
def test_a_token_that_is_nearly_certain_keeps_its_gradient(has_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 - p of a softmax kept in bf16 would be 0 or 0.004 wherever p > 0.99."""
    monkeypatch.setattr(packed_module, "_packs", lambda dtype: has_kernels or dtype == torch.float32)
    weight = torch.eye(2)[[0] + [1] * 9]
    hidden = torch.tensor([[9.0, 0.0]], requires_grad=True)  # p = 1 / (1 + 9 exp(-9)) = 0.9989
    logprobs, _ = head_logprobs(hidden, weight, torch.tensor([0]), precision="bf16_linear")
    logprobs.sum().backward()
    rest = 9 * torch.tensor(-9.0).exp() / (1 + 9 * torch.tensor(-9.0).exp())
    assert hidden.grad is not None
    assert hidden.grad[0].tolist() == pytest.approx([float(rest), -float(rest)], rel=4e-3)


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_rounded_gradients_are_not_all_a_little_too_small(cache_bytes: int) -> None:
    """A factor that all tokens share, such as 1 / 1,437, must not be rounded with each of them: 0.15 percent then."""
    hidden, weight, targets = inputs(scale=0.05)
    given = hidden.requires_grad_(), weight.requires_grad_()
    found: list[tuple[Tensor, ...]] = []
    for precision in ("fp32", "bf16_linear"):
        logprobs, _ = head_logprobs(*given, targets, 1.0, precision, cache_bytes)
        found.append(torch.autograd.grad(-logprobs.sum() / 1437, given))
    for exact, rounded in zip(*found, strict=True):
        assert float((rounded * exact).sum() / (exact * exact).sum()) == pytest.approx(1, abs=1e-4)
