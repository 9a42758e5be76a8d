"""Frozen matrices in 8 and 4 bits: their values, products and gradients, and a model of them on its way to the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch
from test_decoder_parity import packed_logits, sequences, transformers_model
from test_lora import FAMILIES, adapted

from hone.config.shared import LoraConfig
from hone.errors import UserError
from hone.model.hf import load_model, save_model
from hone.model.lora import save_adapter
from hone.model.quantized import LEVELS, Quantized

Base = Literal["8bit", "4bit"]
BASES: list[Base] = ["8bit", "4bit"]


def quantized(weight: torch.Tensor, base: Base) -> Quantized:
    made = Quantized.empty(*weight.shape, base)
    made.copy_(weight)
    return made


def test_levels_are_those_of_nf4_and_codes_the_nearest() -> None:
    """A level is where the normal distribution has as much on either side as its neighbours; the table is QLoRA's."""
    normal = torch.distributions.Normal(0.0, 1.0)
    offset = (1 - 1 / (2 * 15) + 1 - 1 / (2 * 16)) / 2
    above = normal.icdf(torch.linspace(offset, 0.5, 9)[:-1])
    below = -normal.icdf(torch.linspace(offset, 0.5, 8)[:-1])
    levels = torch.cat([above, below, torch.zeros(1)]).sort().values / above.max()
    torch.testing.assert_close(LEVELS, levels, atol=2e-3, rtol=0)
    weight = torch.randn(8, 192, generator=torch.Generator().manual_seed(0))
    made = quantized(weight, "4bit")
    scales = made.scales.float().repeat_interleave(64, dim=1)
    nearest = (weight[..., None] - scales[..., None] * LEVELS).abs().min(2).values
    torch.testing.assert_close((made.dequantize(torch.float32) - weight).abs(), nearest, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("base", "error"), [("8bit", 0.0062), ("4bit", 0.092)])
def test_the_error_and_the_bytes_of_normal_weights(base: Base, error: float) -> None:
    weight = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0)) * 0.02
    made = quantized(weight, base)
    apart = (made.dequantize(torch.float32) - weight).norm() / weight.norm()
    assert float(apart) == pytest.approx(error, rel=0.05)
    assert (made.codes.nbytes + made.scales.nbytes) * 8 / weight.numel() == {"8bit": 8.25, "4bit": 4.25}[base]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_and_gradients_are_those_of_the_whole_matrix(base: Base, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    made = quantized(torch.randn(40, 96, generator=generator), base)  # groups of 32, as 64 does not divide 96
    assert made.scales.shape == (40, 3)
    xs = [torch.randn(5, 96, generator=generator).to(dtype).requires_grad_()]
    xs.append(xs[0].detach().clone().requires_grad_())
    whole = made.dequantize(dtype)
    ys = [made.product(xs[0]), xs[1] @ whole.T]
    torch.testing.assert_close(ys[0], ys[1])
    for y in ys:
        y.float().square().sum().backward()
    torch.testing.assert_close(xs[0].grad, xs[1].grad)
    assert torch.equal(made[8:24].dequantize(dtype), whole[8:24])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_merged_export_is_the_quantized_model_with_its_adapter(family: str, base: Base, tmp_path: Path) -> None:
    """And the adapter alone, on a model exported before it was trained, is the same model again."""
    transformers_model(*FAMILIES[family]).save_pretrained(tmp_path / "model")
    plain, ids = LoraConfig(rank=3, alpha=7), sequences(67)
    model = adapted(tmp_path / "model", lora=plain.model_copy(update={"base": base}))
    before = [model.trained[name].clone() for name in model.trained]
    logits = packed_logits(model, ids)
    save_model(model, tmp_path / "merged")
    torch.testing.assert_close(packed_logits(load_model(tmp_path / "merged"), ids), logits, atol=1e-4, rtol=1e-4)
    save_adapter(model, tmp_path / "adapter")
    with torch.no_grad():
        for name, parameter in model.trained.items():
            parameter.mul_(0 if name.endswith("lora_B") else 1)
    save_model(model, tmp_path / "base")
    path = str(tmp_path / "adapter")
    with pytest.raises(UserError, match=r"delete hone_base\.json there if these are the same weights in another form"):
        adapted(tmp_path / "base", lora=LoraConfig(rank=3, alpha=7, path=path))
    (tmp_path / "adapter" / "hone_base.json").unlink()
    again = adapted(tmp_path / "base", lora=LoraConfig(rank=3, alpha=7, path=path))
    torch.testing.assert_close(packed_logits(again, ids), logits, atol=1e-4, rtol=1e-4)
    assert all(torch.equal(one, other) for one, other in zip(before, again.trained.values(), strict=True))
    whole = adapted(tmp_path / "model", lora=LoraConfig(rank=3, alpha=7, path=path))
    with torch.no_grad():
        assert 1e-3 < float((packed_logits(whole, ids) - logits).abs().mean()) < 3
