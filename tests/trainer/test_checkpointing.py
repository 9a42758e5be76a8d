"""Activation checkpointing: what is computed again has the same bits, and what it frees is free."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from rank_launcher import on_ranks
from rank_worker import make_trainer, sequences

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


@pytest.mark.split
def test_ranks_with_their_layers_in_shards_compute_the_same_bits(tmp_path: Path) -> None:
    on_ranks(2, "checkpointing", tmp_path)
    for rank in range(2):
        found = json.loads((tmp_path / f"checkpointing.2.{rank}.json").read_text())
        for by_mode in found.values():
            assert by_mode["layer"] == by_mode["selective"] == by_mode["none"]
            assert by_mode["none"][0] != by_mode["none"][1]
