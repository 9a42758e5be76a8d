"""The shape of a dense decoder, and what follows from it: parameters, bytes and FLOPs.

Of models that many people use the shape is known by their hub id, so that a plan needs no network.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.model.config import DecoderConfig
from hone.model.files import TINY, read_json


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder: `bias` is that of q, k and v; `tied` says that embedding and head are one matrix."""

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
        """Scalars of one layer's matrices: what its products read, and their FLOPs are twice for each token."""
        attention = self.hidden * (2 * self.q_size + 2 * self.kv_size)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def embedding(self) -> int:
        """Scalars of the embedding `[V, D]`, and so of the head."""
        return self.vocab * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Scalars of one layer: matrices, two norms, norms of q and k, biases."""
        biases = self.bias * (self.q_size + 2 * self.kv_size) + self.o_bias * self.hidden
        biases += self.mlp_bias * (2 * self.intermediate + self.hidden)
        return self.layer_matrices + 2 * self.hidden + 2 * self.head_dim * self.qk_norm + biases

    @property
    def parameters(self) -> int:
        """All scalars, a tied head counted once."""
        embeddings = self.embedding * (1 if self.tied else 2)
        return embeddings + self.layers * self.layer_parameters + self.hidden

    def kv_bytes_per_token(self, dtype_bytes: int = 4) -> int:
        """Bytes of keys and values of one token in all layers; hone's own engine keeps them in fp32."""
        return 2 * self.layers * self.kv_size * dtype_bytes

    @property
    def matrix_flops_per_token(self) -> int:
        """FLOPs of a forward pass's products with the layers' matrices, for one token."""
        return 2 * self.layers * self.layer_matrices

    @property
    def head_flops_per_token(self) -> int:
        """FLOPs of one row of logits."""
        return 2 * self.embedding

    def attention_flops_per_token(self, context: float) -> float:
        """FLOPs of attending to `context` tokens in all layers: scores and their products with the values."""
        return 4 * self.layers * self.q_size * context

    def flops_per_token(self, context: float = 0) -> float:
        """FLOPs of a forward pass for one token that sees `context` others, its logits included."""
        return self.matrix_flops_per_token + self.head_flops_per_token + self.attention_flops_per_token(context)

    @classmethod
    def of(cls, model: DecoderConfig | str | Path, init: InitConfig | None = None) -> Shape:
        """Of a decoder's config, a folder, a hub id (known here, or cached, or fetched), or `hone/tiny` sized by
        `init`. UserError where there is no such model, or its config can't be had.
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
        name = str(model)
        if name == TINY:
            from hone.model.presets import tiny_config

            return cls.of(tiny_config(init))
        if Path(name).is_dir():
            return cls.of(DecoderConfig.from_hf(read_json(Path(name), "config.json", needed=True)))
        return known(name) or cls.of(_fetched(name))


def _fetched(name: str) -> DecoderConfig:
    """The config of a model on the hub: from the cache, else fetched."""
    from hone.model.files import is_hub_id

    if not is_hub_id(name):
        raise UserError(f"there is no model folder {name}, nor can this be the id of a model on the hub")
    import json

    from huggingface_hub import hf_hub_download

    try:
        path = hf_hub_download(name, "config.json", etag_timeout=3)
    except Exception as error:  # offline, no such model, no permission: all the same here, and said in one line
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"the config of {name} can't be had from the hub ({reason})") from error
    return DecoderConfig.from_hf(json.loads(Path(path).read_text(encoding="utf-8")))


def known(name: str) -> Shape | None:
    """The shape of a model that is known by its hub id, and of its variants (`…-Instruct`, `…-Base`, `…-SFT`)."""
    key = name.split("/")[-1].lower()
    for suffix in ("", *SUFFIXES):
        if key.endswith(suffix) and (shape := KNOWN.get(key.removesuffix(suffix))):
            return shape
    return None


SUFFIXES = ("-instruct", "-base", "-reverse-text-sft", "-it")


def _qwen2(layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int, tied: bool) -> Shape:
    return Shape(layers, hidden, heads, kv_heads, hidden // heads, intermediate, vocab, tied, bias=True)


def _qwen3(layers: int, hidden: int, heads: int, intermediate: int, tied: bool) -> Shape:
    return Shape(layers, hidden, heads, 8, 128, intermediate, 151936, tied, qk_norm=True, context=40960)


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, intermediate: int, vocab: int, tied: bool
) -> Shape:
    context = 8192 if vocab < 100_000 else 131_072
    return Shape(layers, hidden, heads, kv_heads, head_dim, intermediate, vocab, tied, context=context)


KNOWN = {
    "qwen2.5-0.5b": _qwen2(24, 896, 14, 2, 4864, 151936, True),
    "qwen2.5-1.5b": _qwen2(28, 1536, 12, 2, 8960, 151936, True),
    "qwen2.5-3b": _qwen2(36, 2048, 16, 2, 11008, 151936, True),
    "qwen2.5-7b": _qwen2(28, 3584, 28, 4, 18944, 152064, False),
    "qwen2.5-14b": _qwen2(48, 5120, 40, 8, 13824, 152064, False),
    "qwen2.5-32b": _qwen2(64, 5120, 40, 8, 27648, 152064, False),
    "qwen2.5-72b": _qwen2(80, 8192, 64, 8, 29568, 152064, False),
    "qwen2.5-math-1.5b": _qwen2(28, 1536, 12, 2, 8960, 151936, True),
    "qwen2.5-math-7b": _qwen2(28, 3584, 28, 4, 18944, 152064, False),
    "qwen2.5-coder-0.5b": _qwen2(24, 896, 14, 2, 4864, 151936, True),
    "qwen2.5-coder-1.5b": _qwen2(28, 1536, 12, 2, 8960, 151936, True),
    "qwen2.5-coder-3b": _qwen2(36, 2048, 16, 2, 11008, 151936, True),
    "qwen2.5-coder-7b": _qwen2(28, 3584, 28, 4, 18944, 152064, False),
    "qwen3-0.6b": _qwen3(28, 1024, 16, 3072, True),
    "qwen3-1.7b": _qwen3(28, 2048, 16, 6144, True),
    "qwen3-4b": _qwen3(36, 2560, 32, 9728, True),
    "qwen3-8b": _qwen3(36, 4096, 32, 12288, False),
    "qwen3-14b": _qwen3(40, 5120, 40, 17408, False),
    "qwen3-32b": _qwen3(64, 5120, 64, 25600, False),
    "llama-3.2-1b": _llama(16, 2048, 32, 8, 64, 8192, 128256, True),
    "llama-3.2-3b": _llama(28, 3072, 24, 8, 128, 8192, 128256, True),
    "llama-3.1-8b": _llama(32, 4096, 32, 8, 128, 14336, 128256, False),
    "llama-3.1-70b": _llama(80, 8192, 64, 8, 128, 28672, 128256, False),
    "llama-3.3-70b": _llama(80, 8192, 64, 8, 128, 28672, 128256, False),
    "smollm2-135m": _llama(30, 576, 9, 3, 64, 1536, 49152, True),
    "smollm2-360m": _llama(32, 960, 15, 5, 64, 2560, 49152, True),
    "smollm2-1.7b": _llama(24, 2048, 32, 32, 64, 8192, 49152, True),
}
"""By the name of the base model, without its owner, in lower case."""
