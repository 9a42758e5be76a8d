"""The model of a trainer's memory, against the storages that a step has at its peak."""

from __future__ import annotations

import numpy as np
import pytest
from storages import Storages

from hone.config.parse import parse
from hone.config.sft import SFTConfig
from hone.config.shared import InitConfig
from hone.loops.parts import make_sft_trainer
from hone.model import head
from hone.model.presets import random_decoder, tiny_config
from hone.trainer import memory
from hone.trainer.memory import training_bytes
from hone.trainer.packing import Sequence, pack

INIT = InitConfig(layers=6, hidden=192, heads=6, kv_heads=2, head_dim=32, intermediate=512)
STAY = ("weights", "bf16 casts", "optimiser")


def test_chunks_of_the_head_are_the_heads() -> None:
    assert memory.LOGITS == {"cpu": head.CPU_LOGITS, "cuda": head.MAX_LOGITS}


def peaks(*flags: str, vocab: int = 260) -> tuple[int, int]:
    """Bytes beside what stays: as planned, and as a second step of two micro-batches has them at its peak."""
    argv = ["--data.path", "x", "--data.seq-len", "64", "--data.batch-size", "64", *flags]
    config = parse(SFTConfig, [*argv, "--data.micro-batch-tokens", "1024"], "sft")
    shape = tiny_config(INIT, vocab)
    trainer = make_sft_trainer(config, random_decoder(shape, precision=config.precision))
    sequences = [Sequence(np.full(64, 7, dtype=np.int64), np.arange(64) > 0)] * 16
    trainer.step([pack(sequences)])
    with Storages(trainer.model) as storages:
        trainer.step([pack(sequences), pack(sequences)])
    planned = training_bytes(config, shape, "cpu", 0, 64)
    return sum(size for name, size in planned.items() if name not in STAY), storages.peak


@pytest.mark.parametrize("checkpointing", ["none", "selective", "layer"])
@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_the_peak_of_a_step(precision: str, checkpointing: str) -> None:
    planned, measured = peaks("--precision", precision, "--checkpointing", checkpointing)
    assert planned == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("cache", [0, 2**30])
@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_the_peak_where_the_vocabulary_is_large(precision: str, cache: int) -> None:
    flags = ("--precision", precision, "--checkpointing", "layer", "--head-cache-bytes", str(cache))
    planned, measured = peaks(*flags, vocab=32_768)
    assert planned == pytest.approx(measured, rel=0.07)
