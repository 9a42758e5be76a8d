"""Bytes by part: against tensors that are really there, against what autograd really keeps, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hone.algorithms.losses import sft_objective
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.shared import InitConfig, LoraConfig, SchedulerConfig
from hone.loops.memory import memory
from hone.model.lora import start_adapter
from hone.model.presets import random_decoder, tiny_config
from hone.model.shape import KNOWN
from hone.trainer.logprobs import token_hidden
from hone.trainer.memory import (
    activation_bytes,
    checkpoint_bytes,
    longest,
    optimiser_bytes,
    weight_bytes,
)
from hone.trainer.packing import Sequence, pack
from hone.trainer.step import Trainer

INIT = InitConfig(layers=3, hidden=192, heads=6, kv_heads=2, head_dim=32, intermediate=512)
LORA = LoraConfig(rank=8)
LORA_4BIT = LoraConfig(rank=8, base="4bit")
PRECISIONS = ["fp32", "bf16_linear", "bf16"]


def rl(*argv: str) -> RLConfig:
    return parse(RLConfig, list(argv), "rl")


def sequences(count: int, length: int) -> list[Sequence]:
    return [Sequence(np.full(length, 7, dtype=np.int64), np.arange(length) > 0) for _ in range(count)]


@pytest.mark.parametrize("kind", ["adamw", "muon", "lora", "lora 8bit", "lora 4bit"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_and_optimiser_are_the_bytes_of_their_tensors(precision: str, kind: str) -> None:
    flags = ["--model.lora.rank", str(LORA.rank)] if "lora" in kind else ["--trainer.optim.type", kind]
    if "bit" in kind:
        flags += ["--model.lora.base", kind.split()[1]]
    config = rl("--precision", precision, *flags)
    lora, optim = config.model.lora, config.trainer.optim
    model = random_decoder(tiny_config(INIT), precision=precision, lora=lora)
    if lora:
        start_adapter(model, 0)
    trainer = Trainer(model, optim, SchedulerConfig(), 1, sft_objective)
    trainer.step([pack(sequences(2, 16))])
    shape = model.config
    bytes_of = {name: sum(t.nbytes for t in group.values()) for name, group in trainer.tensors().items()}
    assert weight_bytes(shape, precision, lora) == sum(p.nbytes for p in model.parameters())
    assert lora is not None or weight_bytes(shape, precision) == bytes_of["model"]
    # AdamW also counts its steps, 4 bytes a tensor.
    assert optimiser_bytes(shape, precision, optim, lora) == pytest.approx(bytes_of["optimizer"], rel=1e-3)
    assert checkpoint_bytes(config, shape) == pytest.approx(sum(bytes_of.values()), rel=1e-3)
    follows = rl("--precision", precision, "--trainer.loss.kl-coef", "0.1", "--trainer.loss.reference-interval", "2")
    full = checkpoint_bytes(rl("--precision", precision), shape)
    assert checkpoint_bytes(follows, shape) - full == weight_bytes(shape, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("qk_norm", "lora"), [(True, None), (False, None), (True, LORA), (True, LORA_4BIT)])
def test_activations_are_what_autograd_keeps(precision: str, qk_norm: bool, lora: LoraConfig | None) -> None:
    """Distinct storages that the graph of a forward pass holds on to, parameters and their casts left out."""
    config = tiny_config(INIT)
    if not qk_norm:
        config = type(config)(**{**config.__dict__, "family": "qwen2", "qk_norm": False})
    model = random_decoder(config, precision=precision, lora=lora)
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
    planned, _ = activation_bytes(config, precision, "cpu", tokens, slots, lora=lora)
    assert planned == pytest.approx(sum(saved.values()), rel=0.05)
    del hidden


def parts(config: RLConfig, device: str) -> dict[str, int]:
    return memory(config, KNOWN["qwen3-0.6b"], device, *longest(config)).parts


def test_parts_of_a_run_by_hand() -> None:
    shape = KNOWN["qwen3-0.6b"]
    config = rl("--seq-len", "1024", "--orchestrator.sampling.max-tokens", "512", "--orchestrator.batch-size", "32")
    config.inference.kv_gib = 8
    graphs = parts(config, "cuda")
    config.inference.cuda_graphs = False
    plain = parts(config, "cuda")
    assert plain["weights"] == 4 * shape.parameters and plain["optimiser"] == 8 * shape.parameters
    # 2 prompts and 32 completions of 512 tokens each, 114,688 bytes a token: bf16.
    assert plain["kv cache"] == (2 + 32) * 512 * 114_688
    # With graphs all of it; logits, and what is computed of them, in memory of their own.
    assert graphs["kv slots"] == 8 * 2**30
    assert graphs["graphs"] == 3 * 32 * 151_936 * 4 + 2**29 and not {"kv slots", "graphs"} & set(plain)
    assert plain["bf16 casts"] == 2 * 28 * shape.layer_matrices
    assert not {"packed weights", "reference model", "checkpoint copy"} & set(plain)
    with_kl = parts(rl("--trainer.loss.kl-coef", "0.1"), "cuda")
    assert with_kl["reference model"] == plain["weights"] + plain["bf16 casts"]
    few = parts(rl("--trainer.optim.state", "8bit", "--precision", "bf16"), "cuda")
    assert few["optimiser"] == pytest.approx((4 + 2 + 1 / 32) * shape.parameters, rel=1e-6)
    assert few["weights"] == 2 * shape.parameters
    assert "optimiser" not in parts(rl("--trainer.optim.offload"), "cuda")
    muon = parts(rl("--trainer.optim.type", "muon"), "cuda")
    assert muon["optimiser"] == 8 * shape.parameters - 4 * 28 * shape.layer_matrices
