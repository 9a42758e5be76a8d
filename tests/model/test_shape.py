"""Shapes give the parameter counts that models really have, and bytes and FLOPs that can be worked out by hand."""

from __future__ import annotations

import pytest

from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.model.shape import known

# As the models' cards on the hub say (safetensors, parameters).
PUBLIC = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-Math-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT": 596_049_920,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.1-8B": 8_030_261_248,
    "meta-llama/Llama-3.1-70B": 70_553_706_496,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-1.7B": 1_711_376_384,
}


@pytest.mark.parametrize("name", PUBLIC)
def test_well_known_models_have_their_public_number_of_parameters(name: str) -> None:
    shape = known(name)
    assert shape is not None and shape.parameters == PUBLIC[name]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_of_the_decoder(family: str, tied: bool) -> None:
    sizes = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_layers": 3, "num_heads": 6}
    sizes |= {"num_kv_heads": 2, "head_dim": 10, "tie_word_embeddings": tied}
    llama, qwen3 = family == "llama", family == "qwen3"
    config = DecoderConfig(family=family, qkv_bias=not qwen3, o_bias=llama, mlp_bias=llama, qk_norm=qwen3, **sizes)
    assert config.parameters == Decoder(config).num_parameters
