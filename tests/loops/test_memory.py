"""Bytes by part: against tensors that are really there, against what autograd really keeps, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hone.algorithms.losses import sft_objective
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.shared import InitConfig, LoraConfig, SchedulerConfig
from hone.inference.memory import GIB, packed_bytes
from hone.loops.memory import fitted, memory
from hone.model.lora import start_adapter
from hone.model.packed import multiplies_bf16_fast
from hone.model.presets import random_decoder, tiny_config
from hone.model.shape import KNOWN
from hone.trainer.logprobs import token_hidden
from hone.trainer.memory import (
    activation_bytes,
    cast_bytes,
    checkpoint_bytes,
    longest,
    micro_batch,
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


def test_versions_of_the_weights_that_a_server_on_this_machine_reads_are_counted() -> None:
    """One that it has, one that is written, one that a checkpoint copies, and those that rollouts may be behind."""
    shape, part = tiny_config(INIT), "weights for the server"

    def parts(*flags: str, device: str = "cpu") -> dict[str, int]:
        return memory(rl(*flags), shape, device, 16, 16).parts

    split = ("--mode", "split", "--precision", "bf16")
    assert parts(*split)[part] == 2 * 2 * shape.parameters
    assert parts(*split, "--ckpt", "--orchestrator.max-async-level", "2")[part] == 5 * 2 * shape.parameters
    assert part not in parts() and part not in parts(*split, device="cuda")
    assert part not in parts(*split, "--orchestrator.client.base-url", "http://127.0.0.1:1/v1")


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


def test_engine_copies_are_the_bytes_of_what_is_kept() -> None:
    model = random_decoder(tiny_config(INIT), precision="bf16_linear")
    kept = sum(m._weight_bf16.nbytes for m in model.modules() if getattr(m, "_weight_bf16", None) is not None)
    assert cast_bytes(model.config, "bf16_linear") == kept
    # For sampling the layout of the kernels besides; the head is too small for one.
    assert sum(packed_bytes(model.config, "bf16_linear", "cpu")) == kept * multiplies_bf16_fast(model.embed)
    assert packed_bytes(KNOWN["qwen3-8b"], "bf16", "cpu") == (0, 0)  # too large to be packed
    assert packed_bytes(KNOWN["qwen3-0.6b"], "bf16", "cuda") == (0, 0)


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


def test_on_a_gpu_what_attention_gives_is_the_input_of_o() -> None:
    """Norms store what they get. Where a prompt is shared, keys and values are copied, and queries are not."""
    shape = KNOWN["qwen3-0.6b"]
    hidden, inner, q, kv = shape.hidden_size, shape.intermediate_size, shape.q_size, shape.kv_size
    for precision, item in (("bf16_linear", 4), ("bf16", 2)):
        each = 2 * item * hidden + 4 * (q + kv) + 2 * (2 * hidden + 3 * inner) + 4 * q
        for slots in (512, 600):
            stored = activation_bytes(shape, precision, "cuda", 512, slots)[0]
            assert stored == shape.num_layers * (512 * each + slots * 4 * kv)


def test_what_fits_with_lora_and_not_without() -> None:
    def total(name: str, gib: int, *flags: str) -> int:
        config, shape = rl("--orchestrator.batch-size", "32", *flags), KNOWN[name]
        config, _ = fitted(config, shape, "cuda", gib * GIB, *longest(config))
        return memory(config, shape, "cuda", *longest(config)).total

    lora, kl = ("--model.lora.rank", "16"), ("--trainer.loss.kl-coef", "0.1")
    assert total("qwen3-8b", 48, *lora) <= 48 * GIB < total("qwen3-8b", 48)
    assert total("qwen3-8b", 48, *lora, *kl) <= 48 * GIB
    assert total("qwen3-4b", 24, *lora, "--model.lora.base", "4bit") <= 24 * GIB < total("qwen3-4b", 24)


def test_micro_batches_share_the_prompt_of_their_completions() -> None:
    config = rl("--orchestrator.batch-size", "64", "--orchestrator.rollouts-per-example", "8", "--seq-len", "256")
    # A group has 56 + 8 x 200 = 1656 tokens: two of them fit into 4096, whose attention sees the prompt 16 times.
    assert micro_batch(config, "cpu", 56, 200) == (2 * 1656, 16 * 256, 16 * 200)
    small = rl("--orchestrator.rollouts-per-example", "8", "--trainer.micro-batch-tokens", "500")
    assert micro_batch(small, "cpu", 56, 200) == (56 + 2 * 200, 2 * 256, 2 * 200)
    # A sequence is never cut.
    least = rl("--orchestrator.rollouts-per-example", "8", "--trainer.micro-batch-tokens", "100")
    assert micro_batch(least, "cpu", 56, 200) == (256, 256, 200)


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


def test_a_background_checkpoint_is_copied_on_a_cpu() -> None:
    shape, flags = KNOWN["qwen3-0.6b"], ["--ckpt.interval", "10"]
    assert parts(rl(*flags), "cpu")["checkpoint copy"] == 12 * shape.parameters
    assert "checkpoint copy" not in parts(rl(*flags), "cuda")
    assert "checkpoint copy" not in parts(rl(*flags, "--no-ckpt.background"), "cpu")
