"""Estimates the memory of hone's engine without the weights, by part. Imports neither torch nor pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hone.hardware import MAX_PACKED_BYTES, MIN_FP32_SIZE, takes_products_in_fp32
from hone.model.config import DecoderConfig

if TYPE_CHECKING:
    from hone.config.rl import RLConfig

GIB = 2**30
KV_GIB = 4.0
"""GiB for keys and values on a CPU, or on any device if a config of an older hone has no `kv_gib`."""
PREFIX_SHARE = 0.25
"""Extra memory for cached prompts of conversations with several turns, as a share of the KV cache's memory."""
GRANULE = 64
"""Tokens in a CUDA graph's slot, and tokens that a step covers, are multiples of this, because kernels need aligned
masks.
"""
ROOM = 8
"""New slots have room for this many times the requested tokens, if the KV cache allows. Growing invalidates graphs."""
GRAPHS_GIB = 0.5
"""A guess of the GiB that CUDA graphs take without their tensors."""


def kv_bytes_per_token(model: DecoderConfig, precision: str, device: str) -> int:
    """Return the bytes of one token's keys and values in all layers.

    For "cuda", assumes a GPU with bf16. A running engine uses `Decoder.kv_bytes_per_token` instead.
    """
    half = precision == "bf16" or (precision == "bf16_linear" and device == "cuda")
    return 2 * model.num_layers * model.kv_size * (2 if half else 4)


def packed_bytes(model: DecoderConfig, precision: str, device: str) -> tuple[int, int]:
    """Return (bytes of the layers' matrices, bytes of the head) in the packed layout of a CPU's kernels."""
    if device != "cpu" or model.parameters * (2 if precision == "bf16" else 4) > MAX_PACKED_BYTES:
        return 0, 0
    low = not takes_products_in_fp32(device)
    packed = 2 * model.matrices * low
    if precision == "fp32":
        sizes = [model.hidden_size * (model.q_size + 2 * model.kv_size), model.q_size * model.hidden_size]
        sizes += [2 * model.hidden_size * model.intermediate_size, model.hidden_size * model.intermediate_size]
        packed = 4 * model.num_layers * sum(size for size in sizes if size >= MIN_FP32_SIZE)
    if precision == "bf16":
        return packed, 2 * model.embedding * low
    return packed, 4 * model.embedding * (model.embedding >= MIN_FP32_SIZE)


def sampling_bytes(
    config: RLConfig, model: DecoderConfig, device: str, prompt: int, completion: int, turns: int = 1
) -> dict[str, int]:
    """Return an engine's bytes by part. `prompt` and `completion` are summed lengths of all `turns`.

    With CUDA graphs, keys and values, logits and graphs stay in memory while the trainer works.
    """
    asked, group = rows_asked_for(config)
    rows = wave(config, model, device, asked, prompt + completion)
    token = kv_bytes_per_token(model, config.precision, device)
    prompts = -(-rows // group) * prompt
    logits, scores = rows * model.vocab_size * 4, rows * model.num_heads * (prompt + completion) * 4
    kv_bytes = int((config.inference.kv_gib or KV_GIB) * GIB)
    graphs = uses_graphs(config, device)
    return {
        "kv cache": 0 if graphs else (prompts + rows * completion) * token,
        "kv slots": min(kv_bytes, ROOM * power_of_two(rows) * slot_tokens(prompt + completion) * token) * graphs,
        "graphs": 3 * logits + int(GRAPHS_GIB * GIB) if graphs else 0,
        "prefix cache": min(int(PREFIX_SHARE * kv_bytes), asked * (prompt + completion) * token) if turns > 1 else 0,
        # Logits, logprobs, probabilities and their sums; scores of attention with their softmax.
        "sampling logits": 4 * logits + (0 if graphs else 3 * scores),
        # Keys and values as the prefill made them, before the cache has its own copy.
        "prefill": prompts * token,
    }


def rows_asked_for(config: RLConfig) -> tuple[int, int]:
    """Return (completions, completions of one prompt) of a training batch or an evaluation, whichever is larger."""
    orch = config.orchestrator
    group = orch.rollouts_per_example
    rows = [((orch.refill.drawn(orch.batch_size // group) * group if orch.refill else orch.batch_size), group)]
    if orch.eval:
        each = orch.eval.rollouts_per_example
        rows.append((orch.eval.num_examples * each, each))
    return max(rows)


def wave(config: RLConfig, model: DecoderConfig, device: str, rows: int, longest: int) -> int:
    """Return how many of `rows` rows with `longest` tokens fit into `inference.kv_gib` at once."""
    room = int((config.inference.kv_gib or KV_GIB) * GIB) // kv_bytes_per_token(model, config.precision, device)
    return max(1, min(rows, room // max(1, slot_tokens(longest) if uses_graphs(config, device) else longest)))


def uses_graphs(config: RLConfig, device: str) -> bool:
    """Return True if an engine in the trainer's process decodes with CUDA graphs."""
    return config.samples_here and config.inference.decodes_with_graphs(device)


def slot_tokens(tokens: int) -> int:
    return -(-tokens // GRANULE) * GRANULE


def power_of_two(x: int) -> int:
    """Return the smallest power of two that is at least x."""
    return 1 << (x - 1).bit_length()
