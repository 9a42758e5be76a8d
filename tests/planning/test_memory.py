"""Bytes by part: against tensors that are really there, against what autograd really keeps, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hone.algorithms.losses import sft_objective
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.model.presets import random_decoder, tiny_config
from hone.planning.arithmetic import Lengths
from hone.planning.devices import DEVICES, Device
from hone.planning.memory import (
    GIB,
    activation_bytes,
    checkpoint_bytes,
    engine_copies,
    memory,
    micro_batch,
    optimiser_bytes,
    weight_bytes,
)
from hone.planning.shape import KNOWN, Shape
from hone.trainer.logprobs import token_hidden
from hone.trainer.packing import Sequence, pack
from hone.trainer.step import Trainer

CPU = Device("a CPU", "cpu", 16 * GIB, {"bf16": 1e11, "fp32": 5e10}, 1e10)
INIT = InitConfig(layers=3, hidden=192, heads=6, kv_heads=2, head_dim=32, intermediate=512)
PRECISIONS = ["fp32", "bf16_linear", "bf16"]


def rl(*argv: str) -> RLConfig:
    return parse(RLConfig, list(argv), "rl")


def sequences(count: int, length: int) -> list[Sequence]:
    return [Sequence(np.full(length, 7, dtype=np.int64), np.arange(length) > 0) for _ in range(count)]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_and_optimiser_are_the_bytes_of_their_tensors(precision: str) -> None:
    model = random_decoder(tiny_config(INIT), precision=precision)
    trainer = Trainer(model, OptimConfig(), SchedulerConfig(), 1, sft_objective)
    trainer.step([pack(sequences(2, 16))])
    shape = Shape.of(model.config)
    bytes_of = {name: sum(t.nbytes for t in group.values()) for name, group in trainer.tensors().items()}
    assert weight_bytes(shape, precision) == bytes_of["model"]
    # AdamW also counts its steps, 4 bytes a tensor.
    assert optimiser_bytes(shape, precision) == pytest.approx(bytes_of["optimizer"], rel=1e-3)
    assert checkpoint_bytes(shape, precision) == pytest.approx(sum(bytes_of.values()), rel=1e-3)


def test_engine_copies_are_the_bytes_of_what_is_kept() -> None:
    model = random_decoder(tiny_config(INIT), precision="bf16_linear")
    kept = sum(m._weight_bf16.nbytes for m in model.modules() if getattr(m, "_weight_bf16", None) is not None)
    shape = Shape.of(model.config)
    assert engine_copies(shape, "bf16_linear", CPU, samples=False) == kept
    # For sampling the layout of the kernels besides; the head is too small for one.
    assert engine_copies(shape, "bf16_linear", CPU) == 2 * kept
    assert engine_copies(KNOWN["qwen3-8b"], "bf16", CPU) == 0  # too large to be packed
    assert engine_copies(KNOWN["qwen3-8b"], "bf16", DEVICES["h100"]) == 0


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("qk_norm", [True, False])
def test_activations_are_what_autograd_keeps(precision: str, qk_norm: bool) -> None:
    """Distinct storages that the graph of a forward pass holds on to, parameters and their casts left out."""
    config = tiny_config(INIT)
    if not qk_norm:
        config = type(config)(**{**config.__dict__, "family": "qwen2", "qk_norm": False})
    model = random_decoder(config, precision=precision)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = [getattr(module, "_weight_bf16", None) for module in model.modules()]
    own |= {weight.untyped_storage().data_ptr() for weight in kept if weight is not None}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    # Rows of different lengths, as batches have them, so that attention has them padded: 8 of 64.
    batch = pack([sequence for length in range(57, 65) for sequence in sequences(1, length)])
    tokens, slots = sum(range(57, 65)), 8 * 64
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = token_hidden(model, batch, batch.loss_indices)
    shape = Shape.of(config)
    passing = activation_bytes(Shape(**{**shape.__dict__, "num_layers": 0}), precision, CPU, tokens, slots)
    planned = activation_bytes(shape, precision, CPU, tokens, slots) - passing
    assert planned == pytest.approx(sum(saved.values()), rel=0.05)
    del hidden


def test_micro_batches_share_the_prompt_of_their_completions() -> None:
    config = rl("--orchestrator.batch-size", "64", "--orchestrator.rollouts-per-example", "8", "--seq-len", "256")
    lengths = Lengths(56, 200, 56, 200)
    # A group has 56 + 8 x 200 = 1656 tokens: two of them fit into 4096, whose attention sees the prompt 16 times.
    assert micro_batch(config, CPU, lengths) == (2 * 1656, 16 * 256, 16 * 200)
    small = rl("--orchestrator.rollouts-per-example", "8", "--trainer.micro-batch-tokens", "500")
    assert micro_batch(small, CPU, lengths) == (56 + 2 * 200, 2 * 256, 2 * 200)
    # A sequence is never cut.
    least = rl("--orchestrator.rollouts-per-example", "8", "--trainer.micro-batch-tokens", "100")
    assert micro_batch(least, CPU, lengths) == (256, 256, 200)


def test_parts_of_a_run_by_hand() -> None:
    shape = KNOWN["qwen3-0.6b"]
    config = rl("--seq-len", "1024", "--orchestrator.sampling.max-tokens", "512", "--orchestrator.batch-size", "32")
    config.inference.kv_gib = 8
    parts = memory(config, shape, DEVICES["h100"]).parts
    assert parts["weights"] == 4 * shape.parameters and parts["optimiser"] == 8 * shape.parameters
    # 2 prompts and 32 completions of 512 tokens each, 229,376 bytes a token.
    assert parts["kv cache"] == (2 + 32) * 512 * 229_376
    assert parts["engine copies"] == 2 * 28 * shape.layer_matrices
    assert "reference model" not in parts and "checkpoint copy" not in parts
    with_kl = memory(rl("--trainer.loss.kl-coef", "0.1"), shape, DEVICES["h100"]).parts
    assert with_kl["reference model"] == parts["weights"] + parts["engine copies"]


def test_a_background_checkpoint_is_copied_on_a_cpu() -> None:
    shape, flags = KNOWN["qwen2.5-0.5b"], ["--ckpt.interval", "10"]
    assert memory(rl(*flags), shape, CPU).parts["checkpoint copy"] == 12 * shape.parameters
    assert "checkpoint copy" not in memory(rl(*flags), shape, DEVICES["h100"]).parts
    assert "checkpoint copy" not in memory(rl(*flags, "--no-ckpt.background"), shape, CPU).parts
