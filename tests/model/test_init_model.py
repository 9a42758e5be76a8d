"""`hone init-model`: what it writes loads in transformers, and it overwrites nothing but its own work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hone.commands.init_model import run
from hone.config.init import InitModelConfig
from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.model.attention import PackedAttention
from hone.model.hf import load_model

FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
FILES |= {"special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}


def test_writes_a_model_that_transformers_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "deep" / "tiny"
    assert run(InitModelConfig(out=out, init=InitConfig(layers=1), seed=4)) == 0
    assert {p.name for p in out.iterdir()} == FILES and [p.name for p in out.parent.iterdir()] == ["tiny"]
    printed = capsys.readouterr().out
    assert "0.23M parameters (1 layers" in printed and "260 tokens" in printed
    assert f"next: sft @ examples/reverse_text/tiny_sft.toml --model.name {out}\n" in printed

    theirs, ours = AutoModelForCausalLM.from_pretrained(out), load_model(out)
    ids = AutoTokenizer.from_pretrained(out)("hello", return_tensors="pt").input_ids
    logits = ours.logits(ours.hidden(ids[0], torch.arange(5), PackedAttention([5])))
    torch.testing.assert_close(logits, theirs(ids).logits[0], atol=1e-5, rtol=0)
    assert torch.equal(ours.embed, load_model("hone/tiny", seed=4, init=InitConfig(layers=1)).embed)
    assert theirs.generation_config.eos_token_id == [2, 0]


def test_overwrites_its_own_work_only(tmp_path: Path) -> None:
    out = tmp_path / "tiny"
    out.mkdir()
    run(InitModelConfig(out=out, init=InitConfig(layers=1)))
    run(InitModelConfig(out=out, init=InitConfig(layers=3)))
    assert load_model(out).config.num_layers == 3
    (out / "notes.txt").write_text("mine")
    run(InitModelConfig(out=out, init=InitConfig(layers=1)))
    assert (out / "notes.txt").read_text() == "mine"
    (out / "README.md").write_text("mine")
    with pytest.raises(UserError, match="not made by `hone init-model`"):
        run(InitModelConfig(out=out))
    assert load_model(out).config.num_layers == 1 and (out / "README.md").read_text() == "mine"
