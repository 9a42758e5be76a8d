"""Activation checkpointing: what is computed again has the same bits, and what it frees is free."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rank_launcher import on_ranks
from rank_worker import make_trainer, sequences
from storages import Storages

from hone.config.shared import InitConfig
from hone.hardware import takes_products_in_fp32
from hone.model.attention import PackedAttention
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.packing import deal
from hone.trainer.parallel import ALONE

MODES = ("none", "layer", "selective")


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("case", ["fp32 policy", "bf16_linear policy untied", "bf16"])
def test_no_mode_changes_a_bit(case: str, share: bool) -> None:
    results = []
    for mode in MODES:
        trainer = make_trainer(ALONE, case)
        trainer.model.set_checkpointing(mode)
        gradients = []
        for parameter in trainer.model.parameters():
            parameter.register_hook(lambda grad, gradients=gradients: gradients.append(grad.clone()))
        lines = [trainer.step(deal(sequences(step), 60, share_prompts=share)) for step in range(2)]
        results.append((lines, trainer.fingerprint(), gradients))
    for lines, fingerprint, gradients in results[1:]:
        assert lines == results[0][0] and fingerprint == results[0][1]
        assert len(gradients) == len(results[0][2]) > 0
        assert all(map(torch.equal, gradients, results[0][2]))


def kept_per_layer(precision: str, mode: str) -> float:
    """Bytes a token that one more layer keeps after the forward pass."""
    kept = []
    for layers in (1, 3):
        init = InitConfig(layers=layers, hidden=64, heads=4, kv_heads=2, head_dim=32, intermediate=192)
        model = random_decoder(tiny_config(init), precision=precision)
        model.set_checkpointing(mode)
        ids, positions = torch.arange(512) % 90, torch.arange(64).repeat(8)
        with Storages(model) as storages:
            hidden = model.hidden(ids, positions, PackedAttention([64] * 8))
        kept.append(storages.now / len(ids))
        del hidden
    return (kept[1] - kept[0]) / 2


@pytest.mark.parametrize(("precision", "stream", "product"), [("fp32", 4, 4), ("bf16_linear", 4, 2), ("bf16", 2, 2)])
def test_a_layer_keeps_its_input_and_if_asked_the_results_of_products_and_attention(
    precision: str, stream: int, product: int
) -> None:
    hidden, q, kv, intermediate, heads = 64, 4 * 32, 2 * 32, 192, 4
    kept = {mode: kept_per_layer(precision, mode) for mode in MODES}
    assert kept["layer"] == stream * hidden
    by_fp32 = product == 2 and takes_products_in_fp32("cpu")
    product = 4 if by_fp32 else product
    products = product * (q + 2 * kv + hidden + 2 * intermediate + hidden)
    attention = 4 * q + 4 * heads  # on a CPU in fp32: the result, and the logarithm of each row's sum
    assert kept["selective"] == pytest.approx(stream * hidden + products + attention, rel=0.02)
    assert kept["none"] > (1.1 if by_fp32 else 1.3) * kept["selective"]


@pytest.mark.split
def test_ranks_with_their_layers_in_shards_compute_the_same_bits(tmp_path: Path) -> None:
    on_ranks(2, "checkpointing", tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"checkpointing.2.{rank}.json").read_text())
        for by_mode in found.values():
            assert by_mode["layer"] == by_mode["selective"] == by_mode["none"]
            assert by_mode["none"][0] != by_mode["none"][1]
