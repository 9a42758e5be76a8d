"""How `hone rl` runs: in one process, or in one for each role where that is asked for."""

from __future__ import annotations

import pytest
from transformers import MistralConfig

from hone.commands.rl import with_mode
from hone.config.parse import parse
from hone.config.rl import RLConfig


@pytest.mark.parametrize(
    ("gpus", "line", "mode", "ranks"),
    [
        ("", "", "colocated", 1),
        ("0,1,2,3", "", "colocated", 1),
        ("0,1,2,3", "--mode split", "split", 3),
        ("0,1,2,3", "--mode split --trainer.optim.offload", "split", 1),
        ("0,1,2,3", "--mode split --trainer.optim.type muon", "split", 1),
        ("0,1,2,3", "--mode split --model.lora.rank 4", "split", 3),
        ("0,1,2,3", "--mode split --model.implementation transformers --model.name MISTRAL", "split", 1),
        ("0", "--mode split", "split", 1),
        ("", "--trainer.ranks 2", "split", 2),
        ("0,1,2,3", "--trainer.ranks 2", "split", 2),
        ("0,1,2,3", "--inference.replicas 2", "split", 2),
        ("0,1,2,3", "--inference.replicas 3", "split", 1),
        ("0,1,2,3", "--orchestrator.client.base-url http://localhost:8000/v1", "colocated", 1),
    ],
)
def test_gpus_choose_no_mode_but_how_many_ranks_it_has(gpus, line, mode, ranks, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    MistralConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32).save_pretrained(tmp_path)
    config = with_mode(parse(RLConfig, line.replace("MISTRAL", str(tmp_path)).split(), "rl"))
    assert (config.mode, config.trainer.ranks) == (mode, ranks)
