"""The decoder computes what transformers computes: logits, gradients and files, for each family and odd shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hone.errors import UserError
from hone.model.attention import PackedAttention
from hone.model.config import DecoderConfig
from hone.model.hf import hf_tensors, load_model, save_model

LENGTHS = [7, 1, 12, 12, 3]
SMALL = {
    "vocab_size": 67,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
# head_dim differs from hidden / heads; one key/value head; head_dim of 2 pairs; tied and untied; biases; RoPE rules.
CASES = {
    "llama-untied": ("llama", {"head_dim": 10, "tie_word_embeddings": False}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 1}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3 | {"rope_theta": 500.0}, "tie_word_embeddings": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen2-untied": ("qwen2", {"num_key_value_heads": 1, "num_attention_heads": 3, "rms_norm_eps": 1e-3}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN | {"rope_theta": 1000.0}}),
    "qwen3-tied": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-wide": ("qwen3", {"head_dim": 4, "num_attention_heads": 9, "num_key_value_heads": 3}),
    "qwen3-biases": ("qwen3", {"head_dim": 6, "num_key_value_heads": 1, "attention_bias": True}),
}


def transformers_model(family: str, overrides: dict):
    """A transformers model with every parameter random, norms and biases too."""
    import transformers

    config = transformers.AutoConfig.for_model(family, **(SMALL | overrides))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (1.0 if "norm" in name else 0.0))
    return model


def sequences(vocab_size: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, vocab_size, (length,), generator=generator) for length in LENGTHS]


def packed_logits(model, ids: list[torch.Tensor]) -> torch.Tensor:
    positions = torch.cat([torch.arange(len(x)) for x in ids])
    return model.logits(model.hidden(torch.cat(ids), positions, PackedAttention([len(x) for x in ids])))


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = transformers_model(*CASES[case])
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = load_model(tmp_path)
    assert ours.config == DecoderConfig.from_hf(json.loads((tmp_path / "config.json").read_text()))

    ids = sequences(67)
    expected = torch.cat([theirs(x[None]).logits[0] for x in ids])
    actual = packed_logits(ours, ids)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)

    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)) / 30
    (expected.log_softmax(-1) * weights).sum().backward()
    (actual.log_softmax(-1) * weights).sum().backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for parameter in ours.parameters():
        parameter.data = parameter.grad
    for name, gradient in hf_tensors(ours):
        torch.testing.assert_close(gradient, gradients[name], atol=2e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(("case", "max_shard_bytes"), list(zip(CASES, [10**9, 10_000] * 5, strict=True)))
def test_saved_folders_load_in_transformers_with_equal_weights(case: str, max_shard_bytes: int, tmp_path: Path) -> None:
    import transformers

    theirs = transformers_model(*CASES[case])
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    save_model(ours, tmp_path / "ours", max_shard_bytes=max_shard_bytes)
    assert ((tmp_path / "ours" / "model.safetensors.index.json").exists()) == (max_shard_bytes == 10_000)
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    for (name, a), b in zip(theirs.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    ids = sequences(67)[0][None]
    assert torch.equal(loaded.eval()(ids).logits, theirs(ids).logits)
    assert load_model(tmp_path / "ours").config == ours.config


def test_older_configs_with_rope_theta_and_rope_scaling(tmp_path: Path) -> None:
    theirs = transformers_model("llama", {"rope_parameters": LLAMA3 | {"rope_theta": 700.0}})
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config |= {"rope_theta": 700.0, "rope_scaling": rope}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = sequences(67)
    expected = torch.cat([theirs(x[None]).logits[0] for x in ids])
    torch.testing.assert_close(packed_logits(load_model(tmp_path), ids), expected, atol=1e-4, rtol=0)


def test_bf16_checkpoints_are_upcast_exactly(tmp_path: Path) -> None:
    theirs = transformers_model(*CASES["qwen3-tied"]).bfloat16()
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path)
    state = theirs.state_dict()
    for name, tensor in hf_tensors(ours):
        assert tensor.dtype == torch.float32 and torch.equal(tensor, state[name].float()), name
    half = load_model(tmp_path, dtype=torch.bfloat16)
    assert half.precision == "bf16" and {p.dtype for p in half.parameters()} == {torch.bfloat16}
    ids = sequences(67)
    logits = packed_logits(half, ids)
    assert logits.dtype == torch.float32
    assert (logits - packed_logits(ours, ids)).abs().mean() < 0.05
    logits.log_softmax(-1)[:, 0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in half.parameters())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2'"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"num_experts": 8}, "mixture of experts"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"use_sliding_window": True, "sliding_window": 8}, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}}, "RoPE of type 'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "RoPE of type 'dynamic'"),
        ({"partial_rotary_factor": 0.5}, "a part of each head"),
        ({"num_key_value_heads": 3}, "make the number of key/value heads a divisor"),
        ({"head_dim": 7}, "make it even"),
        ({"hidden_size": None}, "lacks hidden_size"),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused(change: dict, reason: str) -> None:
    config = SMALL | {"model_type": "qwen3", "head_dim": 8} | change
    with pytest.raises(UserError, match=reason):
        DecoderConfig.from_hf(config)
