"""Models with random weights: the tiny preset, and seeded weights for any config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from hone import rng
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.model.tokenizer import ENDOFTEXT_ID, IM_END_ID, VOCAB_SIZE

if TYPE_CHECKING:
    from hone.config.shared import InitConfig, LoraConfig


def tiny_config(init: InitConfig | None = None, vocab_size: int = VOCAB_SIZE) -> DecoderConfig:
    """Return the tiny preset: Qwen3's architecture with a tied head, sized by `init` (0.43M parameters by default)."""
    if init is None:
        from hone.config.shared import InitConfig

        init = InitConfig()
    return DecoderConfig(
        family="qwen3",
        vocab_size=vocab_size,
        hidden_size=init.hidden,
        intermediate_size=init.intermediate,
        num_layers=init.layers,
        num_heads=init.heads,
        num_kv_heads=init.kv_heads,
        head_dim=init.head_dim,
        qk_norm=True,
        max_position_embeddings=init.max_positions,
        eos_token_ids=(IM_END_ID, ENDOFTEXT_ID),
        pad_token_id=ENDOFTEXT_ID,
    )


def random_decoder(
    config: DecoderConfig, seed: int = 0, precision: str = "fp32", lora: LoraConfig | None = None
) -> Decoder:
    """Return a decoder with matrices from N(0, `initializer_range`), norms at 1 and biases at 0.

    Each parameter has a numpy random stream made from seed and name. So the values of a parameter depend on no other
    parameter, and are the same on every machine.
    """
    model = Decoder(config, precision, lora=lora)
    with torch.no_grad():
        for name, parameter in model.weights.items():
            if len(parameter.shape) == 2 and ".lora_" not in name:
                values = rng.stream(seed, "init", name).standard_normal(tuple(parameter.shape), dtype=np.float32)
                parameter.copy_(torch.from_numpy(values * np.float32(config.initializer_range)))
    model.refresh()
    return model
