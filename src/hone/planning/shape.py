"""The shape of a dense decoder, and what follows from it: parameters, bytes and FLOPs.

Well-known models are listed by their hub id, so that a plan needs no network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.model.config import DecoderConfig
from hone.model.files import TINY, is_hub_id, read_json


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder: `bias` is that of q, k and v; `tied` is True if embedding and head are one matrix."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False
    qk_norm: bool = False
    bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    context: int = 32768

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_matrices(self) -> int:
        """Scalars of one layer's matrices."""
        return self.hidden * (2 * self.q_size + 2 * self.kv_size) + 3 * self.hidden * self.intermediate

    @property
    def embedding(self) -> int:
        """Scalars of the embedding `[V, D]`, and so of the head."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All scalars, a tied head counted once."""
        norms = 2 * self.hidden + 2 * self.head_dim * self.qk_norm
        biases = self.bias * (self.q_size + 2 * self.kv_size) + self.o_bias * self.hidden
        biases += self.mlp_bias * (2 * self.intermediate + self.hidden)
        embeddings = self.embedding * (1 if self.tied else 2)
        return embeddings + self.layers * (self.layer_matrices + norms + biases) + self.hidden

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values in all layers; hone's own engine keeps them in fp32."""
        return 2 * self.layers * self.kv_size * 4

    @property
    def matrix_flops_per_token(self) -> int:
        """FLOPs of a forward pass's products with the layers' matrices."""
        return 2 * self.layers * self.layer_matrices

    @property
    def head_flops_per_token(self) -> int:
        """FLOPs of one row of logits."""
        return 2 * self.embedding

    def attention_flops_per_token(self, context: float) -> float:
        """Return the FLOPs of attending to `context` tokens in all layers: scores and their products with values."""
        return 4 * self.layers * self.q_size * context

    @classmethod
    def of(cls, model: DecoderConfig | str | Path, init: InitConfig | None = None) -> Shape:
        """Return the shape of a config, a folder, a hub id (known here, cached or fetched), or `hone/tiny` with `init`.

        Raises UserError if there is no such model, or its config can't be read.
        """
        if isinstance(model, DecoderConfig):
            return cls(
                layers=model.num_layers,
                hidden=model.hidden_size,
                heads=model.num_heads,
                kv_heads=model.num_kv_heads,
                head_dim=model.head_dim,
                intermediate=model.intermediate_size,
                vocab=model.vocab_size,
                tied=model.tie_word_embeddings,
                qk_norm=model.qk_norm,
                bias=model.qkv_bias,
                o_bias=model.o_bias,
                mlp_bias=model.mlp_bias,
                context=model.max_position_embeddings,
            )
        name, folder = str(model), Path(model)
        if name == TINY:
            from hone.model.presets import tiny_config

            return cls.of(tiny_config(init))
        if not folder.is_dir():
            if shape := known(name):
                return shape
            if not is_hub_id(name):
                raise UserError(f"there is no model folder {name}, nor can this be the id of a model on the hub")
            from huggingface_hub import hf_hub_download

            try:
                folder = Path(hf_hub_download(name, "config.json", etag_timeout=3)).parent
            except Exception as error:  # offline, no such model, no permission
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise UserError(f"the config of {name} can't be fetched from the hub ({reason})") from error
        return cls.of(DecoderConfig.from_hf(read_json(folder, "config.json", needed=True)))


def known(name: str) -> Shape | None:
    """Return the shape of a model that is known by its hub id, or of a variant of it (`…-Instruct`, `…-Base`)."""
    key = re.sub(r"(?<=qwen2\.5)-(math|coder)", "", name.split("/")[-1].lower())
    return KNOWN.get(re.sub(r"-(instruct|base|reverse-text-sft|it)$", "", key))


_QWEN2: dict[str, Any] = {"bias": True}
_QWEN3: dict[str, Any] = {"qk_norm": True, "context": 40960}
_LLAMA: dict[str, Any] = {"context": 131_072}
_SMOL: dict[str, Any] = {"context": 8192}

KNOWN = {
    "qwen2.5-0.5b": Shape(24, 896, 14, 2, 64, 4864, 151936, True, **_QWEN2),
    "qwen2.5-1.5b": Shape(28, 1536, 12, 2, 128, 8960, 151936, True, **_QWEN2),
    "qwen2.5-3b": Shape(36, 2048, 16, 2, 128, 11008, 151936, True, **_QWEN2),
    "qwen2.5-7b": Shape(28, 3584, 28, 4, 128, 18944, 152064, **_QWEN2),
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 3072, 151936, True, **_QWEN3),
    "qwen3-1.7b": Shape(28, 2048, 16, 8, 128, 6144, 151936, True, **_QWEN3),
    "qwen3-4b": Shape(36, 2560, 32, 8, 128, 9728, 151936, True, **_QWEN3),
    "qwen3-8b": Shape(36, 4096, 32, 8, 128, 12288, 151936, **_QWEN3),
    "llama-3.2-1b": Shape(16, 2048, 32, 8, 64, 8192, 128256, True, **_LLAMA),
    "llama-3.2-3b": Shape(28, 3072, 24, 8, 128, 8192, 128256, True, **_LLAMA),
    "llama-3.1-8b": Shape(32, 4096, 32, 8, 128, 14336, 128256, **_LLAMA),
    "llama-3.1-70b": Shape(80, 8192, 64, 8, 128, 28672, 128256, **_LLAMA),
    "smollm2-135m": Shape(30, 576, 9, 3, 64, 1536, 49152, True, **_SMOL),
    "smollm2-360m": Shape(32, 960, 15, 5, 64, 2560, 49152, True, **_SMOL),
    "smollm2-1.7b": Shape(24, 2048, 32, 32, 64, 8192, 49152, True, **_SMOL),
}
"""By the name of the base model, without its owner, in lower case."""
