"""Estimates a trainer's memory on its device, by part. Imports no torch, so that `plan` needs no torch.

Activations are counted tensor by tensor, as the autograd functions of `hone.model` store them.
"""

from __future__ import annotations

import math
from typing import get_args

from hone.config.rl import RLConfig, TrainerConfig
from hone.config.sft import SFTConfig
from hone.config.shared import MOMENTS, Checkpointing, LoraConfig, OptimConfig
from hone.hardware import CACHE_SHARE, HEAD_CACHE_BYTES, padded_rows, takes_products_in_fp32
from hone.inference.memory import packed_bytes
from hone.model.config import DecoderConfig
from hone.trainer import MICRO_BATCH_TOKENS, WHOLE_GRADIENT_BYTES

LOGITS = {"cpu": 2**23, "cuda": 2**25}
"""Number of logits that `hone.model.head` computes at once. A CPU that recomputes logits uses the number for "cuda"."""
CHECKPOINTING = get_args(Checkpointing)
"""All modes, from the most memory to the least."""
MOMENT_BYTES = {"fp32": 4.0, "8bit": 1 + 4 / 256}
"""Bytes of one moment of one weight. 8-bit moments share an fp32 scale among 256 weights."""
BASE_BYTES = {"8bit": 1 + 2 / 64, "4bit": 0.5 + 2 / 64}
"""Bytes of a frozen weight by `model.lora.base`. 64 weights share a bf16 scale."""


def training_bytes(
    config: RLConfig | SFTConfig, model: DecoderConfig, device: str, prompt: int, completion: int, ranks: int = 1
) -> dict[str, int]:
    """Return the bytes of one rank's trainer by part, on "cpu" or "cuda", if sequences have these lengths.

    With several `ranks`, weights, gradients and optimiser are sharded, and weights are gathered layer by layer.
    """
    precision, settings, lora = config.precision, trainer_of(config), config.model.lora
    tokens, slots, loss_tokens = micro_batch(config, device, prompt, completion)
    weights, item = weight_bytes(model, precision, lora), 2 if precision == "bf16" else 4
    stored, of_layer = activation_bytes(model, precision, device, tokens, slots, settings.checkpointing or "none", lora)
    if model.tie_word_embeddings and not lora:  # the head's gradient waits for the embedding's
        of_layer += item * model.embedding
    of_layer += dequantized_bytes(model, precision, device, lora)
    cache = HEAD_CACHE_BYTES if settings.head_cache_bytes is None else settings.head_cache_bytes
    of_head = head_bytes(model, precision, device, loss_tokens, cache, frozen=lora is not None)
    of_head += tokens * 3 * 4 * model.hidden_size  # the last norm, and the states that it gives
    casts = cast_bytes(model, precision) if ranks == 1 and not lora else 0
    packed = packed_bytes(model, precision, device) if ranks == 1 else (0, 0)
    gradients = 4 * trained(model, lora)  # in fp32
    summed_once = ranks > 1 and gradients <= WHOLE_GRADIENT_BYTES
    reference = isinstance(config, RLConfig) and config.trainer.loss.kl_coef > 0 and not lora
    optimiser = optimiser_bytes(model, precision, settings.optim, lora)
    if settings.optim.offload and device != "cpu":
        optimiser = 0
    return {
        "weights": weights // ranks,
        "bf16 casts": casts,
        "packed head": packed[1],
        "gathered weights": (model.layer_matrices + model.embedding) * item if ranks > 1 else 0,
        "optimiser": optimiser // ranks,
        "reference model": (weights // ranks + casts + sum(packed)) * reference,
        "gradients": gradients // ranks + gradients * summed_once,
        "activations": stored,
        "logits or a layer": max(of_head, of_layer),  # whichever the backward pass takes more for
    }


def trainer_of(config: RLConfig | SFTConfig) -> TrainerConfig | SFTConfig:
    return config.trainer if isinstance(config, RLConfig) else config


def trained(model: DecoderConfig, lora: LoraConfig | None) -> int:
    """Count trained scalars: all weights, or with LoRA, A and B of each layer matrix."""
    return model.parameters if lora is None else lora.rank * sum(map(sum, model.linear_shapes))


def weight_bytes(model: DecoderConfig, precision: str, lora: LoraConfig | None = None) -> int:
    """Return the bytes of the weights. With LoRA, frozen matrices have the dtype of matrix products, or 8 or 4 bits."""
    item, product = 2 if precision == "bf16" else 4, 4 if precision == "fp32" else 2
    if lora is None:
        return item * model.parameters
    frozen = sum(map(math.prod, model.linear_shapes))
    of_frozen = int(frozen * (BASE_BYTES[lora.base] if lora.base else product))
    return item * (model.parameters - frozen) + of_frozen + 4 * trained(model, lora)


def dequantized_bytes(model: DecoderConfig, precision: str, device: str, lora: LoraConfig | None) -> int:
    """Return the bytes that dequantizing the largest matrix (gate and up) takes; 0 if no matrix is quantised."""
    if lora is None or lora.base is None:
        return 0
    by_fp32 = precision != "fp32" and takes_products_in_fp32(device)
    besides = max(2 if lora.base == "4bit" else 0, 4 if by_fp32 else 0)  # indices of levels, or a copy
    return 2 * max(map(math.prod, model.linear_shapes)) * ((4 if precision == "fp32" else 2) + besides)


def cast_bytes(model: DecoderConfig, precision: str) -> int:
    """Return the bytes of the bf16 copies of the layers' matrices that precision "bf16_linear" stores."""
    return 2 * model.matrices if precision == "bf16_linear" else 0


def optimiser_bytes(model: DecoderConfig, precision: str, optim: OptimConfig, lora: LoraConfig | None = None) -> int:
    """Return the bytes of the moments, and of fp32 masters if weights are bf16."""
    inner, other = (MOMENT_BYTES[optim.state] * count for count in MOMENTS[optim.type])
    if lora is not None:
        return int(trained(model, lora) * inner)
    masters = 4 * model.parameters if precision == "bf16" else 0
    return int(model.matrices * inner + (model.parameters - model.matrices) * other) + masters


def host_bytes(model: DecoderConfig, optim: OptimConfig, lora: LoraConfig | None = None) -> int:
    """Return the bytes of host memory that `optim.offload` takes for a model on a GPU, or 0 if offload is off.

    Moments, masters and copied gradients are in fp32. Masters and gradients each have a pinned block of a power of two.
    """
    scalars = trained(model, lora)
    block = 1 << (4 * scalars - 1).bit_length()
    return 8 * scalars + 2 * block if optim.offload else 0


def checkpoint_bytes(config: RLConfig | SFTConfig, model: DecoderConfig) -> int:
    """Return the bytes of a checkpoint: trained weights, optimiser state, and a reference if it follows the policy."""
    lora, precision = config.model.lora, config.precision
    follows = isinstance(config, RLConfig) and config.trainer.loss.reference_interval is not None
    weights = (1 + follows) * weight_bytes(model, precision) if lora is None else 4 * trained(model, lora)
    return weights + optimiser_bytes(model, precision, trainer_of(config).optim, lora)


def longest(config: RLConfig | SFTConfig, turns: int = 1) -> tuple[int, int]:
    """Return the largest (prompt, completion) lengths that the config allows: a guess if only their sum is set."""
    if isinstance(config, SFTConfig):
        return 0, config.data.seq_len
    most = config.most_tokens
    new = config.seq_len * 3 // 4 if most is None else min(config.seq_len - 1, turns * most)
    return config.seq_len - new, new


def micro_batch_limit(config: RLConfig | SFTConfig, device: str) -> int:
    section = config.trainer if isinstance(config, RLConfig) else config.data
    return section.micro_batch_tokens or MICRO_BATCH_TOKENS[device]


def micro_batch(config: RLConfig | SFTConfig, device: str, prompt: int, completion: int) -> tuple[int, int, int]:
    """Return (tokens, attention slots, tokens with loss) of the largest micro-batch.

    Completions share their prompt within a micro-batch, but attention copies the prompt's keys for each completion.
    """
    most, completion = micro_batch_limit(config, device), max(1, completion)
    if isinstance(config, SFTConfig):
        tokens = max(min(most, config.data.batch_size * completion), completion)
        return tokens, tokens, tokens
    group = config.orchestrator.rollouts_per_example
    whole = prompt + group * completion
    if whole <= most:
        count = min(config.orchestrator.batch_size // group, most // whole)
        return count * whole, count * group * (prompt + completion), count * group * completion
    count = max(1, (most - prompt) // completion)
    return prompt + count * completion, count * (prompt + completion), count * completion


def activation_bytes(
    model: DecoderConfig,
    precision: str,
    device: str,
    tokens: int,
    slots: int,
    checkpointing: str = "none",
    lora: LoraConfig | None = None,
) -> tuple[int, int]:
    """Return (bytes stored for the backward pass of a micro-batch, bytes of one layer's backward pass).

    A micro-batch has `tokens` tokens and `slots` attention slots. Matrix products take bf16 unless precision is fp32.
    """
    hidden, inner, q, kv = model.hidden_size, model.intermediate_size, model.q_size, model.kv_size
    low = 4 if precision == "fp32" else 2
    by_fp32 = low == 2 and takes_products_in_fp32(device)
    result = 4 if by_fp32 else low
    ragged = low == 2 and device == "cuda"  # attention's kernel for segments of any length
    # Their inputs, normalised, in fp32; a GPU's kernel keeps the inputs as they are.
    norms = 2 * hidden * (2 if ragged and precision == "bf16" else 4) + (4 * (q + kv) if model.qk_norm else 0)
    # Attention's output is the very input of o, unless it is cast, or taken from padded rows.
    shared = ragged or (slots == tokens and (precision == "fp32" or device == "cuda"))
    inputs = low * (2 * hidden + (0 if shared else q))  # of qkv, gate_up, o
    halves = low * 7 * lora.rank if lora else 0  # A x of each matrix
    mlp = low * 3 * inner + halves  # gate_up and activation
    wide, queries = (2, tokens) if ragged else (4, slots)
    # q and the output, k and v; without a kernel that groups query heads, k and v are repeated for them.
    attention = wide * (queries * 2 * q + slots * 2 * (q if precision == "fp32" and device == "cuda" else kv))
    rows = padded_rows(tokens) if device == "cpu" and precision == "bf16_linear" else tokens
    layer = tokens * norms + rows * (inputs + mlp) + attention
    # The gradients of gate_up, of the activation, which is dropped unless one function computes the MLP, and of the
    # residual stream; or those of q, k and v.
    of_mlp = low * inner * (4 if precision == "bf16_linear" else 3)
    of_mlp += 4 * (2 * inner + hidden) * (by_fp32 and precision == "bf16_linear")  # the operands of a product
    passing = max(rows * of_mlp, wide * 2 * (queries * q + slots * kv)) + tokens * 2 * 4 * hidden
    if checkpointing == "none":
        return model.num_layers * layer, passing
    stored = tokens * hidden * (2 if precision == "bf16" else 4)  # a layer's input
    if checkpointing == "selective":
        attended = queries * (wide * q + 4 * model.num_heads)
        products = rows * (result * (q + 2 * kv + 2 * inner + 2 * hidden) * (2 if lora else 1) + halves)
        stored += products + attended  # and what products and attention gave
        layer -= rows * result * 2 * inner + attended
    return model.num_layers * stored, layer + passing


def head_bytes(
    model: DecoderConfig, precision: str, device: str, rows: int, cache_bytes: int, frozen: bool = False
) -> int:
    """Return the bytes of `hone.model.head` for `rows` loss tokens, including the weight's gradient unless `frozen`."""
    low = 4 if precision == "fp32" else 2
    logits, softmax = rows * model.vocab_size, rows * model.vocab_size * low

    def chunk(limit: int) -> int:
        return min(logits, max(model.vocab_size, limit))

    most = max(LOGITS["cuda"], cache_bytes // CACHE_SHARE if device == "cuda" else 0)
    # Logits and their exponentials.
    forward, backward = 2 * 4 * chunk(most if device == "cuda" else LOGITS["cpu"]), 0 if frozen else 4 * model.embedding
    casts = precision != "fp32" and not (precision == "bf16_linear" and takes_products_in_fp32(device))
    if softmax > cache_bytes:
        softmax, backward = 0, backward + (4 + 2 * casts) * chunk(most)
    if casts:  # a part of the product that is added to the gradient, and the cast of the weight
        backward += 0 if frozen else min(model.embedding, LOGITS["cuda"]) * (4 if device == "cuda" else 2)
        backward += 2 * model.embedding * (precision == "bf16_linear")
    return softmax + max(forward, backward)
