"""The shape of a dense decoder, read from and written to a Hugging Face `config.json`.

Three families are supported: `llama`, `qwen2` (also Qwen2.5: biases on q, k, v) and `qwen3` (RMS norm on each head of q
and k). Whatever this decoder does not compute is refused here with a sentence that lists what it does: a config that is
silently half understood gives a model that is silently wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hone.errors import UserError

FAMILIES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
SUPPORTED = (
    "hone's decoder supports dense Llama, Qwen2, Qwen2.5 and Qwen3 models with SiLU, full attention "
    f"and RoPE of type {', '.join(ROPE_TYPES)}, not quantised"
)


@dataclass(frozen=True)
class DecoderConfig:
    """Architecture of a decoder; checks itself.

    `rope_scaling` is None for plain RoPE, else the parameters of one of `ROPE_TYPES` under the key `rope_type`.
    `eos_token_ids` are the ids that end a document or turn, as the model's files list them.
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

    @classmethod
    def from_hf(cls, hf: dict[str, Any]) -> DecoderConfig:
        """From the content of a `config.json`, current (`rope_parameters`) or older (`rope_theta`, `rope_scaling`)."""
        hf = {name: value for name, value in hf.items() if value is not None}
        family = hf.get("model_type")
        if not isinstance(family, str) or family not in FAMILIES:
            raise UserError(f"model_type {family!r} is not supported: {SUPPORTED}")
        _check_values(hf)
        _refuse_unsupported(hf)
        missing = [k for k in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers") if k not in hf]
        if missing:
            raise UserError(f"config.json lacks {', '.join(missing)}: is it the config of a whole model?")
        heads = hf.get("num_attention_heads", 32)
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
            # Qwen3's files always carry head_dim; transformers' default for a file without it is 128.
            head_dim=hf.get("head_dim") or (128 if family == "qwen3" else hf["hidden_size"] // heads),
            rope_theta=theta,
            rope_scaling=scaling,
            rms_norm_eps=hf.get("rms_norm_eps", 1e-6),
            qkv_bias=family == "qwen2" or bool(hf.get("attention_bias", False)),
            o_bias=family != "qwen2" and bool(hf.get("attention_bias", False)),
            mlp_bias=family == "llama" and bool(hf.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
            tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
            max_position_embeddings=hf.get("max_position_embeddings", 2048 if family == "llama" else 32768),
            initializer_range=hf.get("initializer_range", 0.02),
            eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
            bos_token_id=hf.get("bos_token_id"),
            pad_token_id=hf.get("pad_token_id"),
        )

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that transformers loads this model from (weights saved in float32)."""
        rope = dict(self.rope_scaling or {"rope_type": "default"}) | {"rope_theta": self.rope_theta}
        eos = list(self.eos_token_ids)
        hf: dict[str, Any] = {
            "architectures": [FAMILIES[self.family]],
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
            # Readers older than rope_parameters (transformers 4, vLLM of that time) look here.
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
        if self.family != "qwen2":
            hf["attention_bias"] = self.o_bias
        if self.family == "llama":
            hf["mlp_bias"] = self.mlp_bias
        else:
            hf |= {"use_sliding_window": False, "sliding_window": None}
        return hf


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31


def _is_id(value: Any) -> bool:
    return type(value) is int and -1 <= value < 2**31  # some files write -1 for none


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e30 and math.isfinite(value)


_COUNT, _NUMBER, _ID = (_is_count, "a whole number above 0"), (_is_number, "a number"), (_is_id, "a token id")
_VALUES = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"), _COUNT),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"), _COUNT),
    **dict.fromkeys(("rms_norm_eps", "initializer_range", "rope_theta", "attention_dropout"), _NUMBER),
    **dict.fromkeys(("bos_token_id", "pad_token_id"), _ID),
    "eos_token_id": (lambda x: all(map(_is_id, x)) if isinstance(x, list) else _is_id(x), "a token id, or a list"),
    "layer_types": (lambda x: isinstance(x, list), "a list"),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), (lambda x: isinstance(x, dict), "an object")),
}
"""What these keys of a config.json must hold."""


def _check_values(hf: dict[str, Any]) -> None:
    """Raises UserError for a value of the wrong kind."""
    rope = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    theta = rope.get("rope_theta") if isinstance(rope, dict) else None
    for name, value in [*hf.items(), *([] if theta is None else [("rope_theta", theta)])]:
        if name in _VALUES and not _VALUES[name][0](value):
            kind = _VALUES[name][1]
            raise UserError(
                f"{name} in config.json is {str(value)[:40]}, not {kind}: restore it from the model's source"
            )


def _refuse_unsupported(hf: dict[str, Any]) -> None:
    """Raises UserError for anything in the config that changes the computation in a way the decoder does not do."""
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
    """(theta, scaling or None) from `rope_parameters`, else from `rope_theta` and `rope_scaling`."""
    scaling = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    rope_type = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    scaling.pop("type", None)
    theta = scaling.pop("rope_theta", None) or hf.get("rope_theta", 10000.0)
    partial = scaling.pop("partial_rotary_factor", None) or hf.get("partial_rotary_factor", 1.0)
    if partial != 1.0:
        raise UserError(f"this model rotates only a part of each head ({partial}): {SUPPORTED}")
    if rope_type == "default":
        return float(theta), None
    scaling.setdefault("original_max_position_embeddings", hf.get("original_max_position_embeddings"))
    if scaling["original_max_position_embeddings"] is None:
        scaling.pop("original_max_position_embeddings")
    return float(theta), {"rope_type": rope_type} | scaling
