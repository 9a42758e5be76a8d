"""LoRA adapters compute what the `peft` library computes, and their files go both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_decoder_parity import CASES, packed_logits, sequences, transformers_model

from hone.config.shared import LoraConfig
from hone.errors import UserError
from hone.model.hf import load_model, save_model
from hone.model.lora import load_adapter, peft_slices, save_adapter, start_adapter

GEMMA = {"head_dim": 16, "layer_types": ["sliding_attention", "full_attention", "full_attention"], "sliding_window": 64}
FAMILIES = {name: CASES[name] for name in ("qwen3-tied", "llama-biases")} | {"foreign": ("gemma3_text", GEMMA)}
LORA = LoraConfig(rank=3, alpha=7)


def adapted(folder: Path, seed: int = 0, lora: LoraConfig = LORA, **options):
    model = load_model(folder, lora=lora, **options)
    start_adapter(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.trained.items():
            if lora.path is None and name.endswith("lora_B"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 10)
    return model


@pytest.fixture(params=FAMILIES)
def case(request, tmp_path: Path):
    theirs = transformers_model(*FAMILIES[request.param])
    theirs.save_pretrained(tmp_path / "base")
    return theirs, tmp_path / "base"


def test_logits_and_gradients_equal_those_of_peft(case, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base, folder = case
    ours = adapted(folder)
    save_adapter(ours, tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True).eval()
    ids = sequences(67)
    expected = torch.cat([theirs(x[None]).logits[0] for x in ids])
    actual = packed_logits(ours, ids)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad(), theirs.disable_adapter(), ours.disable_adapter():
        alone = packed_logits(ours, ids)
        torch.testing.assert_close(alone, torch.cat([theirs(x[None]).logits[0] for x in ids]), atol=1e-5, rtol=1e-5)
    assert (alone - actual).abs().max() > 0.1
    torch.testing.assert_close(packed_logits(ours, ids), actual, atol=0, rtol=0)

    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)) / 30
    (expected.log_softmax(-1) * weights).sum().backward()
    (actual.log_softmax(-1) * weights).sum().backward()
    assert all(parameter.grad is None for parameter in ours.base.values())
    gradients = {name.replace(".default", ""): p.grad for name, p in theirs.named_parameters() if p.requires_grad}
    slices = peft_slices(ours.config, 3)
    assert gradients.keys() == slices.keys()
    for name, (parameter, start, end) in slices.items():
        gradient = ours.trained[parameter].grad
        assert gradient is not None
        torch.testing.assert_close(gradient[start:end], gradients[name], atol=1e-5, rtol=1e-4)


def test_merged_weights_compute_what_peft_merges(case, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base, folder = case
    ours = adapted(folder)
    save_model(ours, tmp_path / "merged")
    save_adapter(ours, tmp_path / "adapter")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    ids = sequences(67)
    expected = torch.cat([theirs(x[None]).logits[0] for x in ids])
    merged = load_model(tmp_path / "merged")
    torch.testing.assert_close(packed_logits(merged, ids), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed_logits(merged, ids), packed_logits(ours, ids), atol=1e-5, rtol=1e-5)


def test_a_folder_that_peft_wrote_is_loaded(case, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base, folder = case
    config = peft.LoraConfig(r=3, lora_alpha=7, target_modules="all-linear", init_lora_weights=False, lora_dropout=0.1)
    theirs = peft.get_peft_model(base, config).eval()
    theirs.save_pretrained(tmp_path / "adapter")
    ours = adapted(folder, lora=LoraConfig(rank=3, alpha=7, path=str(tmp_path / "adapter")))
    ids = sequences(67)
    expected = torch.cat([theirs(x[None]).logits[0] for x in ids])
    torch.testing.assert_close(packed_logits(ours, ids), expected, atol=1e-5, rtol=1e-5)


def test_an_adapter_goes_on_with_its_own_base_only_in_whatever_dtype_that_is_kept(case, tmp_path: Path) -> None:
    theirs, base = case
    ours = adapted(base)
    save_model(ours, tmp_path / "merged")
    save_adapter(ours, tmp_path / "merged" / "adapter")
    onward = LoraConfig(path=str(tmp_path / "merged" / "adapter"))
    assert (onward.rank, onward.alpha) == (3, 7), "the adapter's own"
    theirs.bfloat16().save_pretrained(tmp_path / "rounded")
    for model in (adapted(base, lora=onward), adapted(tmp_path / "rounded", lora=onward, precision="bf16_linear")):
        assert all(torch.equal(model.trained[name], parameter) for name, parameter in ours.trained.items())
    with pytest.raises(UserError, match=r"on other weights than this model's: .*weights beside an adapter include it"):
        adapted(tmp_path / "merged", lora=onward)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"use_dora": True}, "use_dora = True, which hone does not support"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"init_lora_weights": "pissa_niter_4"}, "is for a base that init_lora_weights = pissa_niter_4 has changed"),
        ({"r": None}, "lacks the adapter's rank"),
        ({"r": 4}, "has rank 4 and alpha 7, model.lora has "),
    ],
)
def test_other_adapters_are_refused(case, change: dict, words: str, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    save_adapter(adapted(case[1]), folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=words):
        adapted(case[1], lora=LoraConfig(rank=3, alpha=7, path=str(folder)))


def test_an_adapter_of_some_layers_only_is_refused(case, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    theirs = peft.get_peft_model(case[0], peft.LoraConfig(r=3, lora_alpha=7, target_modules=["q_proj", "v_proj"]))
    theirs.save_pretrained(tmp_path / "adapter")
    with pytest.raises(UserError, match=r"lacks .*: give an adapter of all linear layers"):
        load_adapter(tmp_path / "adapter", load_model(case[1]).config, LORA)


def test_the_folder_of_merged_weights_is_no_adapter_but_names_the_one_in_it(case, tmp_path: Path) -> None:
    model = adapted(case[1])
    save_model(model, tmp_path / "merged")
    with pytest.raises(UserError, match=r"merged has no adapter_config\.json: give the folder of an adapter, in"):
        load_adapter(tmp_path / "merged", model.config)
    save_adapter(model, tmp_path / "merged" / "adapter")
    with pytest.raises(UserError, match=r"give the folder of an adapter, .*merged/adapter"):
        load_adapter(tmp_path / "merged", model.config)
