"""How `hone rl` runs: in one process, or in one for each role where that is asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import MistralConfig

from hone.commands import rl
from hone.commands.rl import with_mode
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.errors import UserError


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


def test_gpus_that_a_run_leaves_idle_are_named_with_what_would_use_them(monkeypatch, capsys) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    monkeypatch.setattr("hone.commands.training.train_rl", lambda config: SimpleNamespace(exit_code=0))
    assert rl.run(parse(RLConfig, [], "rl")) == 0
    others = "--mode split samples on one and trains on 2, --inference.replicas N samples on N"
    assert capsys.readouterr().out == f"One of 3 GPUs is used: {others}\n"
    assert rl.run(parse(RLConfig, ["--trainer.optim.offload"], "rl")) == 0
    others = "--inference.replicas 2 samples on 2 and trains on the last"
    assert capsys.readouterr().out == f"One of 3 GPUs is used: {others}\n"
    assert rl.run(parse(RLConfig, ["--mode", "colocated"], "rl")) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("line", ["--mode split", "--trainer.ranks 2", "--inference.replicas 2"])
def test_a_mode_whose_extension_is_gone_is_refused_with_what_to_do(line, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("hone.extension._found", dict)
    monkeypatch.setattr("hone.extension.extensions", dict)
    why = "an extension that is not installed. Install it, or train in one process, with one rank and one server"
    with pytest.raises(UserError, match=f"^mode split can't run: it comes with {why}$"):
        rl.run(parse(RLConfig, [*line.split(), "--output-dir", str(tmp_path)], "rl"))
