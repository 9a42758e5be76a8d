"""Bytes that one process takes which samples and trains, by part, as hone allocates them.

Some parts stay (weights, optimiser, what the engine derives from the weights); those of sampling (keys and values,
logits of a decode step) and of a train step (gradients, activations, logits) take turns. What a micro-batch keeps for
its backward pass is counted tensor by tensor, as the autograd functions of `hone.model` save them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.planning.arithmetic import Lengths
from hone.planning.devices import Device
from hone.planning.shape import Shape

GIB, MIB = 2**30, 2**20
KV_GIB = 4
"""GiB of keys and values, where `inference.kv_gib` is not set."""
MICRO_BATCH_TOKENS = {"cpu": 4096, "cuda": 16384}
"""As `hone.trainer.packing`, which needs torch to be imported."""
MAX_LOGITS = 2**25
"""As `hone.model.decoder`."""
MAX_PACKED_BYTES, MIN_FP32_PACKED = 8 * GIB, 2**20
"""As `hone.model.packed`."""
PROCESS = {"rl": 550 * MIB, "sft": 370 * MIB}
"""The process itself on a CPU, measured: Python, torch, tokenizers; for RL also what grades and records, and the
kernels that oneDNN compiles for the shapes of sampling."""
CUDA_CONTEXT = 600 * MIB
"""On a GPU: the context, and the workspaces of its libraries."""
PHASES = {
    "sampling": ("kv cache", "sampling logits", "prefill"),
    "training": ("gradients", "activations", "logits"),
}
"""Parts that only one phase has."""


@dataclass(frozen=True)
class Memory:
    """`parts` in bytes."""

    parts: dict[str, int]

    def of(self, phase: str) -> dict[str, int]:
        """Return the parts of a phase."""
        others = {name for other, names in PHASES.items() if other != phase for name in names}
        return {name: size for name, size in self.parts.items() if name not in others}

    @property
    def peak(self) -> str:
        """The phase that takes most."""
        return max(PHASES, key=lambda phase: sum(self.of(phase).values()))

    @property
    def total(self) -> int:
        return sum(self.of(self.peak).values())

    @property
    def dominant(self) -> str:
        """The largest part of the peak."""
        return max(parts := self.of(self.peak), key=lambda name: parts[name])


def memory(config: RLConfig | SFTConfig, shape: Shape, device: Device, lengths: Lengths | None = None) -> Memory:
    """Return what the process takes on `device`, by default at worst-case lengths."""
    lengths = lengths or Lengths.of(config)
    rl = config if isinstance(config, RLConfig) else None
    if rl is not None or not lengths.measured:
        lengths = lengths.worst  # of many measured examples, the mean is what a batch has
    precision = config.precision
    parts = {"process": CUDA_CONTEXT if device.kind == "cuda" else PROCESS["rl" if rl else "sft"]}
    parts |= _training(config, shape, device, lengths)
    if rl is not None:
        parts |= _sampling(rl, shape, lengths)
    parts["engine copies"] = engine_copies(shape, precision, device, rl is not None)
    if config.ckpt is not None and config.ckpt.background and device.kind == "cpu":
        parts["checkpoint copy"] = checkpoint_bytes(shape, precision)
    return Memory({name: size for name, size in parts.items() if size})


def weight_bytes(shape: Shape, precision: str) -> int:
    return shape.parameters * (2 if precision == "bf16" else 4)


def optimiser_bytes(shape: Shape, precision: str) -> int:
    """Return the bytes of AdamW's two moments in fp32, and of bf16 weights an fp32 master copy."""
    return shape.parameters * (12 if precision == "bf16" else 8)


def checkpoint_bytes(shape: Shape, precision: str) -> int:
    """Return the bytes of model and optimiser state, in memory or on the disk."""
    return weight_bytes(shape, precision) + optimiser_bytes(shape, precision)


def engine_copies(shape: Shape, precision: str, device: Device, samples: bool = True) -> int:
    """Return the bytes of what is derived from the weights.

    These are the bf16 casts of the layers' matrices that `bf16_linear` keeps, and, where a CPU `samples`, the layout
    that its kernels read, of the layers' matrices and of the head.
    """
    matrices = shape.matrices
    kept = 2 * matrices if precision == "bf16_linear" else 0
    if device.kind != "cpu" or not samples or weight_bytes(shape, precision) > MAX_PACKED_BYTES:
        return kept
    packed = 2 * matrices
    if precision == "fp32":
        sizes = [shape.hidden_size * (shape.q_size + 2 * shape.kv_size), shape.q_size * shape.hidden_size]
        sizes += [2 * shape.hidden_size * shape.intermediate_size, shape.hidden_size * shape.intermediate_size]
        packed = 4 * shape.num_layers * sum(size for size in sizes if size >= MIN_FP32_PACKED)
    head = shape.embedding * (2 if precision == "bf16" else 4)
    return kept + packed + (head if precision == "bf16" or shape.embedding >= MIN_FP32_PACKED else 0)


def micro_batch(config: RLConfig | SFTConfig, device: Device, lengths: Lengths) -> tuple[int, int, int]:
    """Return (tokens, attention slots, tokens with loss) of the largest micro-batch.

    Completions of one prompt share it as long as they are in one micro-batch; attention sees it once for each.
    """
    prompt, completion = int(lengths.prompt), max(1, int(lengths.completion))
    most = micro_batch_limit(config, device)
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


def micro_batch_limit(config: RLConfig | SFTConfig, device: Device) -> int:
    """Return the tokens that a micro-batch has room for."""
    section = config.trainer if isinstance(config, RLConfig) else config.data
    return section.micro_batch_tokens or MICRO_BATCH_TOKENS[device.kind]


def _training(config: RLConfig | SFTConfig, shape: Shape, device: Device, lengths: Lengths) -> dict[str, int]:
    """Return the parts of a trainer."""
    precision = config.precision
    tokens, slots, loss_tokens = micro_batch(config, device, lengths)
    gradients = weight_bytes(shape, precision)
    if precision == "bf16":
        gradients += shape.parameters * 4  # in fp32 for the master copy, at the update
    gradients += shape.embedding * (2 if precision == "bf16" else 4)  # the embedding's, before the head's gets it
    reference = 0
    if isinstance(config, RLConfig) and config.trainer.loss.kl_coef > 0:
        reference = weight_bytes(shape, precision) + engine_copies(shape, precision, device, False)
    rows = max(1, MAX_LOGITS // shape.vocab_size)
    return {
        "weights": weight_bytes(shape, precision),
        "optimiser": optimiser_bytes(shape, precision),
        "reference model": reference,
        "gradients": gradients,
        "activations": activation_bytes(shape, precision, device, tokens, slots),
        # Logits, their logprobs, the probabilities of the entropy, the gradient.
        "logits": 4 * 4 * min(rows, loss_tokens) * shape.vocab_size,
    }


def activation_bytes(shape: Shape, precision: str, device: Device, tokens: int, slots: int) -> int:
    """Return what `tokens` of one micro-batch, in `slots` of attention, keep until their backward pass and need there.

    Inputs of products are kept in bf16 unless the precision is fp32.
    """
    hidden, inner, q, kv = shape.hidden_size, shape.intermediate_size, shape.q_size, shape.kv_size
    low = 4 if precision == "fp32" else 2
    norms = 2 * 4 * hidden + (4 * (q + kv) if shape.qk_norm else 0)  # their inputs, normalised, in fp32
    inputs = low * (2 * hidden + q)  # of qkv, o, gate_up
    mlp = low * 3 * inner  # gate_up and activation
    wide = 2 if precision == "bf16" and device.kind == "cuda" else 4
    attention = wide * (2 * q + 2 * kv)  # q, k, v and what comes out
    rows = tokens
    if device.kind == "cpu" and precision == "bf16_linear":  # rows of zeros are appended, as in `hone.model.packed`
        granule = max(16, (1 << (max(1, tokens) - 1).bit_length()) // 16)
        rows = -(-tokens // granule) * granule
    kept = shape.num_layers * (tokens * norms + rows * (inputs + mlp) + slots * attention)
    # In the backward pass of one layer: the gradients of gate_up, of the activation and of the residual stream.
    passing = tokens * (low * 5 * inner + 4 * 4 * hidden) + slots * wide * 2 * (q + kv)
    return kept + passing


def _sampling(config: RLConfig, shape: Shape, lengths: Lengths) -> dict[str, int]:
    """Return the parts of an engine whose completions all run to their limit."""
    rows, _, group = sampled_at_once(config, shape, lengths)
    prompts = -(-rows // group) * lengths.longest_prompt
    scores = rows * shape.num_heads * lengths.longest * 4
    return {
        "kv cache": (prompts + rows * lengths.longest_completion) * shape.kv_bytes_per_token,
        # Logits, logprobs, probabilities and their sums; scores of attention with their softmax.
        "sampling logits": 4 * rows * shape.vocab_size * 4 + 3 * scores,
        # Keys and values as the prefill made them, and end to end, before the cache has its own copy.
        "prefill": prompts * shape.kv_bytes_per_token,
    }


def sampled_at_once(config: RLConfig, shape: Shape, lengths: Lengths) -> tuple[int, int, int]:
    """Return (completions sampled at once, those asked for, those of one prompt).

    Asked for are those of a batch or of an evaluation, whichever is larger.
    """
    orch = config.orchestrator
    rows, group = orch.batch_size, orch.rollouts_per_example
    if orch.eval:
        evaluated = orch.eval.num_examples * orch.eval.rollouts_per_example
        rows, group = max((rows, group), (evaluated, orch.eval.rollouts_per_example))
    return wave(config, shape, rows, lengths), rows, group


def wave(config: RLConfig, shape: Shape, rows: int, lengths: Lengths) -> int:
    """Return how many of `rows` go at once: as many as `inference.kv_gib` has room for at their limit."""
    budget = int((config.inference.kv_gib or KV_GIB) * GIB) // shape.kv_bytes_per_token
    return max(1, min(rows, budget // max(1, int(lengths.longest))))
