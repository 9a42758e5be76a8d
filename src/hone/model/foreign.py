"""Decoders of families that `hone.model.decoder` does not support, computed by transformers' code.

transformers can use a custom attention function. The model computes one row of flat tokens, and each layer passes its
queries, keys and values to the caller's `attention`. So packing, shared prompts, the KV cache and `batch_invariant`
work as for hone's decoder, and sampler and trainer agree as closely.

The model must have causal softmax attention only, and its logits must be a matrix times the last hidden states. `load`
refuses a model if hone's logits of two packed sequences differ from transformers' logits of each sequence. With window
attention, the longest context is the window, because up to there window attention equals full attention.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from hone.errors import UserError, first_line
from hone.model.attention import PackedAttention
from hone.model.config import MAX_HEAD, DecoderConfig
from hone.model.decoder import Attention, Decoder, Linear, LoraLinear, pack_unless_large, storing_contexts
from hone.model.device import has_bf16
from hone.model.packed import PackedWeight

if TYPE_CHECKING:
    from hone.config.shared import LoraConfig

ATTENTION_NAME = "hone"
"""The name under which transformers knows hone's attention."""
NET = "net"
"""Attribute of `TransformersDecoder` that holds transformers' model, and so the first part of parameters' names."""
CHECKED = (5, 9)
"""Lengths of the two sequences that `load` compares logits of."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""Largest mean difference of logprobs that `load` accepts, by the weights' dtype."""
UNSAVED = ("dtype", "torch_dtype", "transformers_version", "_name_or_path")


@dataclass(frozen=True)
class TransformersConfig(DecoderConfig):
    """The architecture of a model run by transformers. `hf` is the content of config.json.

    `shapes`: shapes of the parameters by transformers' name, in order, without a tied head. `linear`: names of the
    `nn.Linear` layers except the head, as in PEFT's all-linear. Experts fused in one tensor are not included.
    """

    hf: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    linear: tuple[str, ...] = ()
    scale: float = 1.0
    """Hidden states are multiplied by this before the head."""

    implementation: ClassVar[str] = "transformers"

    def __post_init__(self) -> None:
        pass

    @property
    def stated_context(self) -> int:
        return self.hf.get("max_position_embeddings") or self.max_position_embeddings

    @property
    def matrices(self) -> int:
        return self.parameters - self.embedding * (1 if self.tie_word_embeddings else 2)

    @property
    def layer_matrices(self) -> int:
        return self.matrices // self.num_layers

    @property
    def linear_shapes(self) -> list[tuple[int, ...]]:
        return [self.shapes[f"{name}.weight"] for name in self.linear]

    @property
    def parameters(self) -> int:
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def to_hf(self) -> dict[str, Any]:
        return dict(self.hf)

    @classmethod
    def read(cls, folder: Path, hf: dict[str, Any]) -> TransformersConfig:
        """Read the config from `hf`, the content of config.json. Raises UserError if hone can't compute the model."""
        kind = hf.get("model_type")
        if hf.get("quantization_config"):
            raise UserError(f"the weights in {folder} are quantised: give the unquantised model, in bf16 or fp32")
        if hf.get("vision_config"):
            raise UserError(f"model_type {kind!r} has a vision part: give a folder with the text model alone")
        try:
            config, net = without_weights(json.dumps(hf))
            heads, layers = config.num_attention_heads, config.num_hidden_layers
        except Exception as error:
            problem = f"transformers cannot make a model of {folder} ({first_line(error)})"
            raise UserError(f"{problem}: {SUPPORTED}") from None
        head, embed = net.get_output_embeddings(), net.get_input_embeddings()
        if head is None or getattr(head, "bias", None) is not None:
            raise UserError(f"the head of model_type {kind!r} is not a plain matrix: {SUPPORTED}")
        parameters = {name for name, _ in net.named_parameters(remove_duplicate=False)}
        if buffers := sorted(set(net.state_dict()) - parameters):
            raise UserError(f"model_type {kind!r} has weights that are not parameters ({buffers[0]}): {SUPPORTED}")
        eos = hf.get("eos_token_id")
        return cls(
            family=str(kind),
            vocab_size=head.weight.shape[0],
            hidden_size=config.hidden_size,
            intermediate_size=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            tie_word_embeddings=head.weight is embed.weight,
            max_position_embeddings=longest_context(config),
            eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
            bos_token_id=hf.get("bos_token_id"),
            pad_token_id=hf.get("pad_token_id"),
            hf={name: value for name, value in hf.items() if name not in UNSAVED},
            shapes={name: tuple(p.shape) for name, p in net.named_parameters()},
            linear=tuple(name for name, m in net.named_modules() if type(m) is nn.Linear and m is not head),
            scale=logit_scale(config),
        )


@lru_cache(1)
def without_weights(config_json: str) -> tuple[Any, Any]:
    """Return transformers' config and model (on the meta device). Cached: servers call this at each weight update."""
    with quiet():
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM

        hf = json.loads(config_json)
        config = CONFIG_MAPPING[hf["model_type"]].from_dict(hf)
        with torch.device("meta"):
            return config, AutoModelForCausalLM.from_config(
                config, attn_implementation=ATTENTION_NAME, trust_remote_code=False
            )


SUPPORTED = "hone can use decoders of transformers that have only causal softmax attention and a plain head"


def longest_context(config: Any) -> int:
    """Return the largest length at which all layers attend to all tokens, and RoPE does not depend on the batch.

    Beyond this length, some layers attend only within a window or chunk, or the RoPE frequencies (`longrope`,
    `dynamic`) depend on the batch's longest sequence.
    """
    bounds = [getattr(config, "max_position_embeddings", None) or 2048]
    kinds = getattr(config, "layer_types", None)
    if "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True):
        bounds.append(getattr(config, "sliding_window", None) or bounds[0])
    if not kinds or "chunked_attention" in kinds:
        bounds.append(getattr(config, "attention_chunk_size", None) or bounds[0])
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if one.get("rope_type") in ("longrope", "dynamic"):
            bounds.append(one.get("original_max_position_embeddings") or bounds[0])
    return min(bounds)


def logit_scale(config: Any) -> float:
    """Return the factor that the model multiplies its logits by (as Cohere and Granite do), or 1."""
    return float(getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1))


class TransformersDecoder(Decoder):
    """A model of transformers with the interface of `Decoder`: takes flat tokens, returns hidden states and logits."""

    recordable = False
    config: TransformersConfig

    def __init__(self, net: Any, config: TransformersConfig, precision: str) -> None:
        nn.Module.__init__(self)
        self.config, self.precision, self.lora = config, precision, None
        self.net = net.eval()  # dropout is off in training, too: the sampler has none
        self.generation_config: dict[str, Any] = {}
        self.packed_head = PackedWeight()
        self._forward = _Forward()
        for module in [*net.modules()]:
            if hasattr(module, "layer_idx"):
                module.hone_forward = self._forward
            for name in [name for name, value in vars(module).items() if "dropout" in name and type(value) is float]:
                setattr(module, name, 0.0)  # `set_checkpointing` sets `training`: some layers would drop out
            for name, child in module.named_children():
                if type(child) is nn.Linear and child is not net.get_output_embeddings():
                    setattr(module, name, _Linear.of(child))
        pack_unless_large(self)

    @torch.no_grad()
    def adapt(self, lora: LoraConfig) -> None:
        """Freeze the model; add an uninitialised adapter to each linear layer. Raises UserError without such layers."""
        if not self.config.linear:
            raise UserError(f"model.lora needs linear layers, and {self.config.family} has none: leave model.lora out")
        self.lora = lora
        for name in self.config.linear:
            owner, _, attribute = name.rpartition(".")
            module = self.net.get_submodule(owner)
            setattr(module, attribute, _LoraLinear.beside(getattr(module, attribute), lora))
        for parameter in self.base.values():
            parameter.requires_grad_(False)

    @property
    def embed(self) -> nn.Parameter:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.net.get_input_embeddings().weight

    @property
    def lm_head(self) -> nn.Parameter | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self.config.tie_word_embeddings else self.net.get_output_embeddings().weight

    def set_checkpointing(self, mode: str) -> None:
        from transformers.modeling_layers import GradientCheckpointingLayer

        keep: Any = storing_contexts if mode == "selective" else noop_context_fn
        again: Any = partial(checkpoint, use_reentrant=False, preserve_rng_state=False, context_fn=keep)
        for layer in self.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                # `training` of the layer itself lets transformers do so; of the modules in it it stays off.
                layer.training = layer.gradient_checkpointing = mode != "none"
                layer._gradient_checkpointing_func = again

    def hidden(
        self, token_ids_N: Tensor, positions_N: Tensor, attention: Attention, only: Tensor | None = None
    ) -> Tensor:
        self._forward.attention, self._forward.half = attention, self.kv_dtype == torch.bfloat16
        out = self.net.base_model(
            input_ids=token_ids_N[None], position_ids=positions_N[None], use_cache=False, return_dict=True
        )
        hidden_ND = out.last_hidden_state[0]
        if only is not None:
            hidden_ND = hidden_ND.index_select(0, only)
        return hidden_ND if self.config.scale == 1 else hidden_ND * self.config.scale


class _Forward:
    """`attention` of the current forward pass; `half`: True for bf16. All layers share this object."""

    attention: Attention
    half: bool


class _Linear(Linear):
    @classmethod
    def of(cls, plain: nn.Linear) -> _Linear:
        with torch.device("meta"):
            made = cls(plain.in_features, plain.out_features, plain.bias is not None, plain.weight.dtype, False)
        made.weight, made.bias = plain.weight, plain.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class _LoraLinear(_Linear, LoraLinear):
    @classmethod
    def beside(cls, plain: Linear, lora: LoraConfig) -> _LoraLinear:
        out_size, in_size = plain.weight.shape
        with plain.weight.device:
            made = cls(in_size, (out_size,), False, plain.weight.dtype, plain.bf16_product, lora)
        made.frozen.copy_(plain.weight)
        made.bias, made.packed = plain.bias, plain.packed
        return made


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Call the attention that `TransformersDecoder.hidden` was given: query [1, H, N, Dh] → [1, N, H, Dh]."""
    for name in ("softcap", "s_aux"):
        if others.get(name) is not None:
            raise UserError(
                f"this model's attention has {name}, which hone's attention does not compute: take one of the families "
                "in docs/training.md"
            )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    size = q.shape[-1]
    if v.shape[-1] != size:
        raise UserError("this model's keys and values differ in size, which hone can't compute: take another model")
    if scaling is not None and scaling != size**-0.5:
        q = q * (scaling * size**0.5)
    if module.hone_forward.half:
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    return module.hone_forward.attention(module.layer_idx, q, k, v).to(query.dtype)[None], None


@cache
def register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION_NAME, attend)
    AttentionMaskInterface.register(ATTENTION_NAME, lambda *_, **__: None)


@contextmanager
def quiet() -> Iterator[None]:
    """In the block, silence transformers. torchao is silenced for good."""
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    register()
    from transformers.utils import logging as transformers_logging

    level, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bar:
            transformers_logging.enable_progress_bar()


def load(
    folder: Path, config: TransformersConfig, device: torch.device, precision: str, lora: LoraConfig | None = None
) -> TransformersDecoder:
    """Load the model in `folder`. Raises UserError if weights are missing, or if logits differ from transformers'."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    with quiet():
        from transformers import AutoModelForCausalLM

        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                attn_implementation="eager",
                output_loading_info=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
            net, found = loaded
        except Exception as error:
            raise UserError(f"transformers cannot load {folder} ({first_line(error)}): complete the download") from None
    for problem, names in found.items():
        if names:
            some = ", ".join(sorted(map(str, names))[:3])
            raise UserError(f"the weights in {folder} do not fit its config.json: {problem.replace('_', ' ')} {some}")
    for name, parameter in net.named_parameters():
        if not parameter.sum().float().isfinite() and not parameter.isfinite().all():
            raise UserError(f"values of {name} in {folder} are not finite: restore its weights")
    heads = [getattr(module, "head_dim", None) or 0 for module in net.modules() if hasattr(module, "layer_idx")]
    if (widest := max(heads, default=0)) > MAX_HEAD and precision != "fp32" and has_bf16(device):
        raise UserError(
            f"attention heads of {folder} are {widest} wide, and a GPU's bf16 kernel takes at most {MAX_HEAD}: set "
            "precision = fp32, or take another model"
        )
    net = net.to(device)
    ids = torch.arange(sum(CHECKED), device=device) * 7 % config.vocab_size
    expected = _plain_logprobs(net, ids)
    net.set_attn_implementation(ATTENTION_NAME)
    model = TransformersDecoder(net, config, "bf16" if precision == "bf16" else "fp32")
    apart = float((_packed_logprobs(model, ids) - expected).abs().mean())
    if not apart <= TOLERANCE[dtype]:
        raise UserError(
            f"hone's logits of {folder} differ from transformers' by {apart:.2g} nats a token: the model has a "
            f"part that hone can't compute; {SUPPORTED}"
        )
    for module in model.modules():
        if isinstance(module, Linear):
            module.bf16_product = precision == "bf16_linear"
    model.precision = precision
    if lora is not None:
        model.adapt(lora)
    return model


@torch.no_grad()
def _plain_logprobs(net: Any, ids: Tensor) -> Tensor:
    rows = [net(input_ids=part[None], use_cache=False).logits[0] for part in ids.split(CHECKED)]
    return torch.cat(rows).float().log_softmax(-1)


@torch.no_grad()
def _packed_logprobs(model: TransformersDecoder, ids: Tensor) -> Tensor:
    positions = torch.cat([torch.arange(length, device=ids.device) for length in CHECKED])
    logprobs = model.logits(model.hidden(ids, positions, PackedAttention(CHECKED))).log_softmax(-1)
    model.refresh()  # forgets packed copies: a quantised base would keep them for ever
    return logprobs
