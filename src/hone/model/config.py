"""The architecture of a dense decoder, read from and written to a Hugging Face `config.json`.

`FAMILIES` is the table of supported families. To add a family like Llama, add a row; a new RoPE scaling rule goes into
`rope.py`. A config with unsupported features is refused, because the model would be silently wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hone.errors import UserError


@dataclass(frozen=True)
class Family:
    """A family of decoders. The values are defaults for keys that config.json lacks.

    `attention_bias`: two flags, for q, k and v, and for o: True if config.json's `attention_bias` gives them a bias.
    `qkv_bias`: True if q, k and v always have a bias. `extra`: more keys that transformers writes to config.json.
    """

    architecture: str
    attention_bias: tuple[bool, bool] = (True, True)
    qkv_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    max_positions: int = 32768
    extra: tuple[tuple[str, Any], ...] = (("use_sliding_window", False), ("sliding_window", None))


FAMILIES = {
    "llama": Family("LlamaForCausalLM", mlp_bias=True, max_positions=2048, extra=()),
    "qwen2": Family("Qwen2ForCausalLM", attention_bias=(False, False), qkv_bias=True),
    "qwen3": Family("Qwen3ForCausalLM", qk_norm=True, head_dim=128),
}
"""`model_type` in config.json → family. `qwen2` includes Qwen2.5."""
MAX_HEAD = 256
"""Largest head size of the bf16 varlen attention kernel on a GPU."""
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
SUPPORTED = (
    "hone's decoder supports dense Llama, Qwen2, Qwen2.5 and Qwen3 models with SiLU, full attention "
    f"and RoPE of type {', '.join(ROPE_TYPES)}, not quantised"
)


@dataclass(frozen=True)
class DecoderConfig:
    """Architecture of a decoder. Raises UserError if hone does not support it.

    `rope_scaling` is None for plain RoPE, else the parameters of one of `ROPE_TYPES` under the key `rope_type`.
    `eos_token_ids`: all ids that end a document or a turn, from the model's files.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rms_norm_eps: float = 1e-6
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None

    implementation: ClassVar[str] = "hone"
    """The library that computes the model, as a value of `model.implementation`."""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UserError(f"model family {self.family!r} is not supported: {SUPPORTED}")
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads evenly: "
                "make the number of key/value heads a divisor of the number of heads"
            )
        if self.head_dim % 2:
            raise UserError(f"head_dim {self.head_dim} is odd, but RoPE rotates pairs: make it even")
        rope_type = (self.rope_scaling or {}).get("rope_type", "default")
        if rope_type not in ROPE_TYPES:
            raise UserError(f"RoPE of type {rope_type!r} is not supported: {SUPPORTED}")

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def stated_context(self) -> int:
        """Longest sequence that config.json allows. hone's limit, `max_position_embeddings`, may be lower."""
        return self.max_position_embeddings

    @property
    def context(self) -> str:
        limit, stated = self.max_position_embeddings, self.stated_context
        why = f" (not {stated}: beyond {limit} layers see only a window or RoPE changes, which hone does not compute)"
        return f"context of {limit} tokens{why if stated > limit else ''}"

    @property
    def layer_matrices(self) -> int:
        return self.hidden_size * (2 * self.q_size + 2 * self.kv_size) + 3 * self.hidden_size * self.intermediate_size

    @property
    def matrices(self) -> int:
        return self.num_layers * self.layer_matrices

    @property
    def linear_shapes(self) -> list[tuple[int, ...]]:
        """(out, in) of each layer matrix that gets an adapter. The parts of fused matrices are listed separately."""
        hidden, inner, q, kv = self.hidden_size, self.intermediate_size, self.q_size, self.kv_size
        attention = [(q, hidden), (kv, hidden), (kv, hidden), (hidden, q)]
        return self.num_layers * [*attention, (inner, hidden), (inner, hidden), (hidden, inner)]

    @property
    def embedding(self) -> int:
        """Number of weights of the embedding `[V, D]`. The head has the same number."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """Number of weights. A tied head and embedding count once."""
        others = 2 * self.hidden_size + 2 * self.head_dim * self.qk_norm  # norms, and biases
        others += self.qkv_bias * (self.q_size + 2 * self.kv_size) + self.o_bias * self.hidden_size
        others += self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        embeddings = self.embedding * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.matrices + self.num_layers * others + self.hidden_size

    @classmethod
    def from_hf(cls, hf: dict[str, Any]) -> DecoderConfig:
        """Read a parsed `config.json`, current (`rope_parameters`) or older (`rope_theta`, `rope_scaling`)."""
        hf = {name: value for name, value in hf.items() if value is not None}
        family = hf.get("model_type")
        if not isinstance(family, str) or family not in FAMILIES:
            raise UserError(f"model_type {family!r} is not supported: {SUPPORTED}")
        _check_values(hf)
        _refuse_unsupported(hf)
        missing = [k for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers") if k not in hf]
        if missing:
            raise UserError(f"config.json lacks {', '.join(missing)}: give the config of a whole model")
        row, heads = FAMILIES[family], hf.get("num_attention_heads", 32)
        qkv_bias, o_bias = (on and bool(hf.get("attention_bias")) for on in row.attention_bias)
        theta, scaling = _rope(hf)
        eos = hf.get("eos_token_id")
        return cls(
            family=family,
            vocab_size=hf["vocab_size"],
            hidden_size=hf["hidden_size"],
            intermediate_size=hf["intermediate_size"],
            num_layers=hf["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=hf.get("num_key_value_heads") or heads,
            head_dim=hf.get("head_dim") or row.head_dim or hf["hidden_size"] // heads,
            rope_theta=theta,
            rope_scaling=scaling,
            rms_norm_eps=hf.get("rms_norm_eps", 1e-6),
            qkv_bias=row.qkv_bias or qkv_bias,
            o_bias=o_bias,
            mlp_bias=row.mlp_bias and bool(hf.get("mlp_bias")),
            qk_norm=row.qk_norm,
            tie_word_embeddings=bool(hf.get("tie_word_embeddings")),
            max_position_embeddings=hf.get("max_position_embeddings", row.max_positions),
            initializer_range=hf.get("initializer_range", 0.02),
            eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
            bos_token_id=hf.get("bos_token_id"),
            pad_token_id=hf.get("pad_token_id"),
        )

    def to_hf(self) -> dict[str, Any]:
        """Return the `config.json` that transformers needs for this model, without `dtype`."""
        row = FAMILIES[self.family]
        rope = dict(self.rope_scaling or {"rope_type": "default"}) | {"rope_theta": self.rope_theta}
        eos = list(self.eos_token_ids)
        hf: dict[str, Any] = {
            "architectures": [row.architecture],
            "model_type": self.family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_position_embeddings,
            "initializer_range": self.initializer_range,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": rope,
            # Readers older than rope_parameters (transformers 4) look here.
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_dropout": 0.0,
            "use_cache": True,
            "eos_token_id": eos[0] if len(eos) == 1 else eos or None,
            "bos_token_id": self.bos_token_id,
            "pad_token_id": self.pad_token_id,
        }
        if self.rope_scaling:
            hf["rope_scaling"] = dict(self.rope_scaling)
        if any(row.attention_bias):
            hf["attention_bias"] = self.o_bias
        if row.mlp_bias:
            hf["mlp_bias"] = self.mlp_bias
        return hf | dict(row.extra)


def _is_int(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < 2**31


_COUNT = (lambda x: _is_int(x, 1), "a whole number above 0")
_NUMBER = (lambda x: type(x) in (int, float) and 0 <= x < 1e30, "a number")
_ID = (lambda x: _is_int(x, -1), "a token id")  # some files write -1 for none
_VALUES = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"), _COUNT),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"), _COUNT),
    **dict.fromkeys(("rms_norm_eps", "initializer_range", "rope_theta", "attention_dropout"), _NUMBER),
    **dict.fromkeys(("bos_token_id", "pad_token_id"), _ID),
    "eos_token_id": (lambda x: all(map(_ID[0], x)) if isinstance(x, list) else _ID[0](x), "a token id, or a list"),
    "layer_types": (lambda x: isinstance(x, list), "a list"),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), (lambda x: isinstance(x, dict), "an object")),
}
"""Key of config.json → (function that checks the value, name of valid values)."""


def _check_values(hf: dict[str, Any]) -> None:
    rope = hf.get("rope_parameters") or hf.get("rope_scaling")
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    for name, value in [*hf.items(), *([] if theta is None else [("rope_theta", theta)])]:
        if name in _VALUES and not _VALUES[name][0](value):
            kind = _VALUES[name][1]
            raise UserError(
                f"{name} in config.json is {str(value)[:40]}, not {kind}: restore it from the model's source"
            )


def _refuse_unsupported(hf: dict[str, Any]) -> None:
    found = []
    if hf.get("hidden_act", "silu") not in ("silu", "swish"):
        found.append(f"activation {hf['hidden_act']!r}")
    if hf.get("quantization_config"):
        found.append("quantised weights")
    if any(hf.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        found.append("a mixture of experts")
    if hf.get("attention_dropout"):
        found.append(f"attention_dropout {hf['attention_dropout']}")
    windowed = hf.get("use_sliding_window") and hf.get("sliding_window")
    if windowed or any(kind != "full_attention" for kind in hf.get("layer_types") or ()):
        found.append("sliding-window attention")
    if found:
        raise UserError(f"this model uses {' and '.join(found)}: {SUPPORTED}")


def _rope(hf: dict[str, Any]) -> tuple[float, dict[str, Any] | None]:
    scaling = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    rope_type = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    scaling.pop("type", None)
    theta = scaling.pop("rope_theta", None) or hf.get("rope_theta", 10000.0)
    partial = scaling.pop("partial_rotary_factor", None) or hf.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise UserError(f"this model applies RoPE to only a part of each head ({partial}): {SUPPORTED}")
    if rope_type == "default":
        return float(theta), None
    if "original_max_position_embeddings" in hf:
        scaling.setdefault("original_max_position_embeddings", hf["original_max_position_embeddings"])
    return float(theta), {"rope_type": rope_type} | scaling
