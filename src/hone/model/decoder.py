"""A dense decoder (Llama, Qwen2, Qwen3) over flat tokens. Training, prefill and decoding use the same code.

Tokens of all sequences lie end to end in one dimension N. The caller's `attention` decides which tokens see each other,
so this module has no batch dimension, padding or mask. Projections of the same input are fused (`qkv_proj`,
`gate_up_proj`); `hone.model.hf` joins and splits them for files.

Shapes: N tokens, M tokens that need logits, D hidden size, V vocabulary, H query and K key/value heads, Dh head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts, noop_context_fn

from hone.hardware import MAX_PACKED_BYTES
from hone.model.config import DecoderConfig
from hone.model.device import has_bf16
from hone.model.head import head_logits
from hone.model.ops import (
    add_and_norm,
    bf16_linear,
    bf16_mlp,
    embedding,
    rms_norm,
    split_and_rotate,
    swiglu,
    to_bf16,
)
from hone.model.packed import PackedWeight, linear
from hone.model.rope import RotaryTable

if TYPE_CHECKING:
    from hone.config.shared import LoraConfig
    from hone.model.quantized import Quantized

PRECISIONS = ("fp32", "bf16_linear", "bf16")

# (layer, q [N, H, Dh], k [N, K, Dh], v [N, K, Dh]) -> [N, H, Dh], after the norm of q and k and RoPE.
Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class Linear(nn.Module):
    """x Wᵀ + b. If `bf16_product` is true, W and b are fp32, and the product is in bf16 with a stored bf16 copy of W.

    A sharded weight is whole only while it is used, so `keep_nothing` turns off the storing of copies.
    """

    def __init__(self, in_size: int, out_size: int, bias: bool, dtype: torch.dtype, bf16_product: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_size, in_size, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(out_size, dtype=dtype)) if bias else None
        self.bf16_product = bf16_product
        self._weight_bf16: Tensor | None = None
        self._keeps_derived = True
        self.packed = PackedWeight()

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self._sampled(x)
        if self.bf16_product:
            return bf16_linear(x, self.weight, self.bias, self.stored_bf16)
        return linear(x, self.weight, self.bias)

    def _sampled(self, x: Tensor) -> Tensor:
        if not self.bf16_product:
            return self.packed.product(x, self.weight, self.bias)
        y = self.bf16(to_bf16(x))[: x.shape[0]].float()
        return y if self.bias is None else y.add_(self.bias)

    def bf16(self, x_bf16: Tensor) -> Tensor:
        """Return x Wᵀ in bf16, without bias or gradient."""
        stored = self.stored_bf16
        return self.packed.product(x_bf16, self.weight.detach().bfloat16() if stored is None else stored)

    @property
    def stored_bf16(self) -> Tensor | None:
        if self._weight_bf16 is None:
            self.refresh()
        return self._weight_bf16

    def keep_nothing(self) -> None:
        self._keeps_derived = self.packed.enabled = False
        self._weight_bf16 = None
        self.packed.forget()

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the stored bf16 copy. CUDA graphs read it at a fixed address, so it is written in place."""
        self.packed.forget()
        if not (self.bf16_product and self._keeps_derived):
            return
        if self._weight_bf16 is None:
            self._weight_bf16 = self.weight.detach().bfloat16()
        else:
            self._weight_bf16.copy_(self.weight)

    def exchange_derived(self, other: Linear) -> None:
        self._weight_bf16, other._weight_bf16 = other._weight_bf16, self._weight_bf16
        self.packed.forget()
        other.packed.forget()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        """Move the parameters; drop copies made on another device."""
        super()._apply(fn, recurse)
        self.packed.forget()
        if self._weight_bf16 is not None and self._weight_bf16.device != self.weight.device:
            self._weight_bf16 = None
        return self


class LoraLinear(Linear):
    """W x + b + alpha / rank · B A x, where W and b are frozen (arXiv:2106.09685).

    W is fused from matrices with `parts[i]` rows, and each matrix has a separate adapter. `lora_A` `[len(parts) · rank,
    in]` and `lora_B` `[out, rank]`, both fp32, hold these adapters in the order of `parts`. All products are in W's
    dtype. With `lora.base`, W is stored as the `codes` and `scales` of a `Quantized`.
    """

    def __init__(
        self,
        in_size: int,
        parts: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        bf16_product: bool,
        lora: LoraConfig,
    ) -> None:
        super().__init__(0, sum(parts), bias, dtype, bf16_product)
        if lora.base is None:
            low = torch.bfloat16 if bf16_product else dtype
            self.weight = nn.Parameter(torch.empty(sum(parts), in_size, dtype=low))
        else:
            del self.weight
            from hone.model.quantized import Quantized

            made = Quantized.empty(sum(parts), in_size, lora.base)
            self.codes = nn.Parameter(made.codes, requires_grad=False)
            self.scales = nn.Parameter(made.scales, requires_grad=False)
        self.parts, self.rank, self.scale, self.enabled = parts, lora.rank, lora.alpha / lora.rank, True
        self.lora_A = nn.Parameter(torch.empty(len(parts) * lora.rank, in_size))
        self.lora_B = nn.Parameter(torch.zeros(sum(parts), lora.rank))
        self._low: tuple[Tensor, Tensor] | None = None

    @property
    def frozen(self) -> Tensor | Quantized:
        if hasattr(self, "weight"):
            return self.weight
        from hone.model.quantized import Quantized

        return Quantized(self.codes, self.scales)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bf16(to_bf16(x))[: x.shape[0]].float() if self.bf16_product else self._adapted(x)
        return y if self.bias is None else y + self.bias

    def bf16(self, x_bf16: Tensor) -> Tensor:
        return self._adapted(x_bf16)

    def _adapted(self, x: Tensor) -> Tensor:
        if not isinstance(weight := self.frozen, Tensor):
            y = weight.product(x)
        else:
            y = linear(x, weight) if torch.is_grad_enabled() else self.packed.product(x, weight)
        if not self.enabled:
            return y
        if x.is_cuda and self._keeps_derived and not torch.is_grad_enabled():
            if self._low is None or self._low[1].device != x.device:
                self._low = self._in_low_precision(x.dtype)
            low_A, low_B = self._low
            return torch.add(y, linear(linear(x, low_A), low_B), alpha=self.scale)
        halves = linear(x, self.lora_A.to(x.dtype)).split(self.rank, dim=1)
        matrices = self.lora_B.to(x.dtype).split(self.parts)
        delta = torch.cat([linear(half, matrix) for half, matrix in zip(halves, matrices, strict=True)], dim=1)
        return torch.add(y, delta, alpha=self.scale)

    def merged(self, lora_A: Tensor, lora_B: Tensor, whole: Callable[[Tensor], Tensor]) -> Tensor:
        """Return W + alpha / rank · B A `[out, in]` in fp32, with the given A and B. `whole` gathers a sharded W.

        A and B may be on the host; the result has the same bits.
        """
        weight = self.frozen
        if isinstance(weight, Tensor):
            base = whole(weight.detach()).float()
        else:
            base = replace(weight, codes=whole(weight.codes), scales=whole(weight.scales)).dequantize(torch.float32)
        pairs = zip(lora_B.to(base.device).split(self.parts), lora_A.to(base.device).split(self.rank), strict=True)
        return torch.add(base, torch.cat([B @ A for B, A in pairs]), alpha=self.scale)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _in_low_precision(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return A, and all B in one block-diagonal matrix `[out, len(parts) · rank]`: sampling takes two products."""
        return self.lora_A.to(dtype), torch.block_diag(*self.lora_B.to(dtype).split(self.parts))

    @torch.no_grad()
    def refresh(self) -> None:
        """Update the low-precision copies of A and B, in place for CUDA graphs. W is frozen."""
        if self._low is not None:
            for low, new in zip(self._low, self._in_low_precision(self._low[0].dtype), strict=True):
                low.copy_(new)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class DecoderLayer(nn.Module):
    """h += attention(norm(h)); h += mlp(norm(h)).

    `checkpointing` sets what is stored for the backward pass. "none": all activations. "layer": the layer's input.
    "selective": the input and the outputs of `_STORED`: matrix products, attention. The rest is recomputed exactly.
    """

    def __init__(
        self, config: DecoderConfig, index: int, dtype: torch.dtype, bf16_product: bool, lora: LoraConfig | None = None
    ) -> None:
        super().__init__()
        c = config

        def product(in_size: int, parts: tuple[int, ...], bias: bool) -> Linear:
            if lora is None:
                return Linear(in_size, sum(parts), bias, dtype, bf16_product)
            return LoraLinear(in_size, parts, bias, dtype, bf16_product, lora)

        self.checkpointing = "none"
        self.index, self.heads, self.eps = index, (c.num_heads, c.num_kv_heads), c.rms_norm_eps
        self.input_norm = RMSNorm(c.hidden_size, c.rms_norm_eps, dtype)
        self.qkv_proj = product(c.hidden_size, (c.q_size, c.kv_size, c.kv_size), c.qkv_bias)
        self.q_norm = nn.Parameter(torch.ones(c.head_dim, dtype=dtype)) if c.qk_norm else None
        self.k_norm = nn.Parameter(torch.ones(c.head_dim, dtype=dtype)) if c.qk_norm else None
        self.o_proj = product(c.q_size, (c.hidden_size,), c.o_bias)
        self.post_norm = RMSNorm(c.hidden_size, c.rms_norm_eps, dtype)
        self.gate_up_proj = product(c.hidden_size, 2 * (c.intermediate_size,), c.mlp_bias)
        self.down_proj = product(c.intermediate_size, (c.hidden_size,), c.mlp_bias)

    def forward(
        self, hidden_ND: Tensor, cos: Tensor, sin: Tensor, attention: Attention, only: Tensor | None = None
    ) -> Tensor:
        arguments = hidden_ND, cos, sin, attention, only
        if self.checkpointing == "none" or not torch.is_grad_enabled():
            return self._compute(*arguments)
        keep = storing_contexts if self.checkpointing == "selective" else noop_context_fn
        return checkpoint(self._compute, *arguments, use_reentrant=False, preserve_rng_state=False, context_fn=keep)  # pyright: ignore[reportReturnType]

    def _compute(
        self, hidden_ND: Tensor, cos: Tensor, sin: Tensor, attention: Attention, only: Tensor | None
    ) -> Tensor:
        qkv = self.qkv_proj(self.input_norm(hidden_ND))
        # Attention's kernel for segments of any length takes bf16, and decoding must read the same keys and values.
        dtype = torch.bfloat16 if self.qkv_proj.bf16_product and has_bf16(qkv.device) else None
        q, k, v = split_and_rotate(qkv, self._qk_norm_weight(), cos, sin, self.heads, self.eps, dtype)
        attended = attention(self.index, q, k, v).flatten(1)
        if only is not None:
            hidden_ND, attended = hidden_ND.index_select(0, only), attended.index_select(0, only)
        norm = self.post_norm
        hidden_ND, normed_ND = add_and_norm(hidden_ND, self.o_proj(attended), norm.weight, norm.eps)
        return hidden_ND + self._mlp(normed_ND)

    def _mlp(self, x_ND: Tensor) -> Tensor:
        up, down = self.gate_up_proj, self.down_proj
        if up.bf16_product and up.bias is None:
            if isinstance(up, LoraLinear) or not torch.is_grad_enabled():
                return down.bf16(swiglu(up.bf16(to_bf16(x_ND))))[: x_ND.shape[0]].float()
            return bf16_mlp(x_ND, up.weight, down.weight, up.stored_bf16, down.stored_bf16)
        return down(swiglu(up(x_ND)))

    def _qk_norm_weight(self) -> Tensor | None:
        """Return the weights of q's and k's norms, repeated per head `[H + K, Dh]`: one operation normalises both."""
        if self.q_norm is None or self.k_norm is None:
            return None
        num_q, num_k = self.heads
        return torch.cat([self.q_norm.expand(num_q, -1), self.k_norm.expand(num_k, -1)])


_STORED = {
    *("aten.mm.default", "aten.addmm.default", "torch_attn._varlen_attn.default"),
    *(f"aten._scaled_dot_product_{kind}_attention.default" for kind in ("flash", "efficient", "cudnn")),
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
}
""""selective" stores the results of these operations. Other operations are cheap to recompute."""


@cache
def _is_stored(operation: Any) -> bool:
    return str(operation) in _STORED


def storing_contexts() -> Any:
    return create_selective_checkpoint_contexts(lambda _context, operation, *_, **__: _is_stored(operation))


class Decoder(nn.Module):
    """Maps token ids to logits.

    `precision` is "fp32", "bf16_linear" (fp32, except that the layers' matrix products are in bf16) or "bf16" (bf16
    parameters; norms, RoPE and softmax in fp32). With `lora`, only the adapter is trained. The constructor leaves
    parameters uninitialised: use `hone.model.presets.random_decoder` or `hone.model.hf.load_model`.
    """

    recordable = True
    """True if the forward pass can be recorded in a CUDA graph."""
    base_id: str | None = None
    """With an adapter: hub id of the base model, if it was loaded from the hub."""
    base_digest: str | None = None
    """With an adapter: `hone.model.hf.rows_digest` of the base model."""

    def __init__(
        self,
        config: DecoderConfig,
        precision: str = "fp32",
        dtype: torch.dtype | None = None,
        lora: LoraConfig | None = None,
    ) -> None:
        super().__init__()
        assert precision in PRECISIONS, precision
        dtype = dtype or (torch.bfloat16 if precision == "bf16" else torch.float32)
        self.config, self.precision, self.lora = config, precision, lora
        self.embed = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size, dtype=dtype))
        bf16_product = precision == "bf16_linear"
        layer = partial(DecoderLayer, config, dtype=dtype, bf16_product=bf16_product, lora=lora)
        self.layers = nn.ModuleList(layer(i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.lm_head = None if config.tie_word_embeddings else nn.Parameter(torch.empty_like(self.embed))
        self.packed_head = PackedWeight()
        self.rotary = RotaryTable(config)
        hf, ids = config.to_hf(), ("bos_token_id", "eos_token_id", "pad_token_id")
        self.generation_config: dict[str, Any] = {name: hf[name] for name in ids if hf[name] is not None}
        pack_unless_large(self)
        for parameter in self.base.values() if lora else ():
            parameter.requires_grad_(False)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Trained parameters by name: all parameters, or with LoRA only the adapter's."""
        return {n: p for n, p in self.named_parameters() if self.lora is None or ".lora_" in n}

    @property
    def base(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.named_parameters() if ".lora_" not in n}

    @property
    def weights(self) -> dict[str, Any]:
        """All parameters by name. A quantised matrix is one `Quantized` under the name of the weight."""
        frozen = {f"{n}.weight": m.frozen for n, m in self.named_modules() if isinstance(m, LoraLinear)}
        return {n: p for n, p in self.named_parameters() if not n.endswith((".codes", ".scales"))} | frozen

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """In the block, compute without the adapter, if the model has one."""
        adapted = [module for module in self.modules() if isinstance(module, LoraLinear)]
        for module in adapted:
            module.enabled = False
        try:
            yield
        finally:
            for module in adapted:
                module.enabled = True

    def set_checkpointing(self, mode: str) -> None:
        for layer in self.modules():
            if isinstance(layer, DecoderLayer):
                layer.checkpointing = mode

    @property
    def head_weight(self) -> Tensor:
        """The head's matrix `[V, D]`. For a tied head, this is the embedding."""
        return self.embed if self.lm_head is None else self.lm_head

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def kv_dtype(self) -> torch.dtype:
        half = self.precision == "bf16" or (self.precision == "bf16_linear" and has_bf16(self.device))
        return torch.bfloat16 if half else torch.float32

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.config.num_layers * self.config.kv_size * self.kv_dtype.itemsize

    @property
    def num_parameters(self) -> int:
        """Number of weights without the adapter. A tied head and embedding count once."""
        return self.config.parameters

    def hidden(
        self, token_ids_N: Tensor, positions_N: Tensor, attention: Attention, only: Tensor | None = None
    ) -> Tensor:
        """Compute hidden states `[N, D]` after the final norm. `positions_N` count from 0 within each sequence.

        `only`: indices of the tokens to return. For other tokens, the last layer computes only keys and values.
        """
        hidden_ND = embedding(token_ids_N, self.embed)
        cos, sin = self.rotary(positions_N)
        for layer in self.layers[:-1]:
            hidden_ND = layer(hidden_ND, cos, sin, attention)
        return self.norm(self.layers[-1](hidden_ND, cos, sin, attention, only))

    def logits(self, hidden_MD: Tensor) -> Tensor:
        """Return the float32 logits `[M, V]` of hidden states."""
        if torch.is_grad_enabled():
            return linear(hidden_MD, self.head_weight).float()
        return head_logits(hidden_MD, self.head_weight, self.precision, packed=self.packed_head)

    def exchange(self, other: Decoder) -> None:
        for ours, theirs in zip(self.parameters(), other.parameters(), strict=True):
            ours.data, theirs.data = theirs.data, ours.data
        for decoder in (self, other):
            decoder.packed_head.forget()
        for ours, theirs in zip(self.modules(), other.modules(), strict=True):
            if isinstance(ours, Linear) and isinstance(theirs, Linear):
                ours.exchange_derived(theirs)

    def refresh(self) -> None:
        """Update all values that are derived from parameters. Call this after parameters changed in place."""
        if self.lora is None:
            self.packed_head.forget()
        for module in self.modules():
            if isinstance(module, Linear):
                module.refresh()


def pack_unless_large(model: Decoder) -> None:
    """Turn off packed weights (on a CPU) if memory can't hold the model twice."""
    if model.num_parameters * model.embed.itemsize > MAX_PACKED_BYTES:
        for packed in (model.packed_head, *(m.packed for m in model.modules() if isinstance(m, Linear))):
            packed.enabled = False
