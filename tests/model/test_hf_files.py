"""Folders that do not hold a model, or not all of one, are refused by name; files written over have all bytes anew."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hone import rng
from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.model.files import is_hub_id, resolve_model
from hone.model.hf import copy_weights, load_model, reserve_files, save_model
from hone.model.presets import random_decoder, tiny_config

SMALL = InitConfig(layers=1, hidden=16, heads=2, kv_heads=1, head_dim=8, intermediate=24)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(random_decoder(tiny_config(SMALL)), tmp_path / "model")
    return tmp_path / "model"


def refuses(folder: Path, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load_model(folder)


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors") | changes
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / "model.safetensors")


def test_missing_files_are_named(folder: Path) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:500])
    refuses(folder, "model.safetensors cannot be read")
    (folder / "model.safetensors").unlink()
    refuses(folder, "no model.safetensors: complete the download")
    (folder / "pytorch_model.bin").touch()
    refuses(folder, "convert its .bin weights")
    (folder / "config.json").write_text("{")
    refuses(folder, "config.json is not valid JSON")
    (folder / "config.json").write_text("[]")
    refuses(folder, "must hold a JSON object")
    (folder / "config.json").unlink()
    refuses(folder, "has no config.json")


def test_missing_shards_are_named(folder: Path) -> None:
    model = load_model(folder)
    save_model(model, folder, max_shard_bytes=5000)
    assert not (folder / "model.safetensors").exists()
    shards = sorted(p.name for p in folder.glob("*.safetensors"))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == shards and len(shards) > 1
    assert index["metadata"]["total_size"] == 4 * model.num_parameters
    (folder / shards[1]).unlink()
    refuses(folder, f"lacks {shards[1]}")
    save_model(model, folder)
    assert [p.name for p in folder.glob("*.safetensors")] == ["model.safetensors"]
    assert not (folder / "model.safetensors.index.json").exists()
    load_model(folder)


def test_weights_that_do_not_fit_the_config_are_named(folder: Path) -> None:
    pristine = (folder / "model.safetensors").read_bytes()
    edit_weights(folder, **{"model.norm.weight": None})
    refuses(folder, "lack model.norm.weight")
    (folder / "model.safetensors").write_bytes(pristine)
    edit_weights(folder, **{"model.layers.0.self_attn.q_proj.bias": torch.zeros(16)})
    refuses(folder, "unknown model.layers.0.self_attn.q_proj.bias")
    (folder / "model.safetensors").write_bytes(pristine)
    edit_weights(folder, **{"model.norm.weight": torch.zeros(17)})
    refuses(folder, r"model.norm.weight is \[17\], not \[16\]")
    # A tied head may be stored twice; it is not read.
    (folder / "model.safetensors").write_bytes(pristine)
    edit_weights(folder, **{"lm_head.weight": torch.zeros(259, 16)})
    assert load_model(folder).head_weight.abs().sum() > 0


def test_names_that_are_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("here").mkdir()
    with pytest.raises(UserError, match="file is a file"):
        resolve_model("file")
    with pytest.raises(UserError, match=r"no model folder ./missing.*init-model"):
        resolve_model("./missing")
    with pytest.raises(UserError, match="neither a folder here nor a model that could be fetched"):
        resolve_model("owner/missing")

    def silent(*_: object, **__: object) -> None:
        raise OSError

    with monkeypatch.context() as patched, pytest.raises(UserError, match=r"from the hub \(OSError\)"):
        patched.setattr("huggingface_hub.snapshot_download", silent)
        resolve_model("owner/missing")
    assert resolve_model("here") == Path("here")
    assert [is_hub_id(n) for n in ("owner/name", "gpt2", "here", "a/b/c", "/tmp/x", "hone/tiny")] == [True] * 2 + [
        False
    ] * 4
    for wrong in ({"dtype": torch.float16}, {"precision": "int8"}):
        with pytest.raises(UserError, match="use"):
            load_model("hone/tiny", **wrong)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("max_shard_bytes", [10**9, 20_000])
def test_reserved_files_are_written_over_mapped_and_copied_with_the_bytes_of_others(
    tmp_path: Path, precision: str, max_shard_bytes: int
) -> None:
    first, second = (random_decoder(tiny_config(InitConfig()), seed, precision) for seed in (1, 2))
    folder, copied, usual = (tmp_path / name for name in ("reserved", "copied", "usual"))
    for model in (first, second):
        reserve_files(model, folder, max_shard_bytes)
        files = {file.name: file.stat().st_ino for file in folder.glob("*.safetensors")}
        assert all(file.stat().st_blocks * 512 >= file.stat().st_size for file in folder.glob("*.safetensors"))
        save_model(model, folder, max_shard_bytes, reserved=True)
        assert {file.name: file.stat().st_ino for file in folder.glob("*.safetensors")} == files
    assert (len(files) == 1) == (max_shard_bytes == 10**9)
    plain, mapped = (load_model(folder, precision=precision, mapped=mapped) for mapped in (False, True))
    for ours, theirs, made in zip(mapped.parameters(), plain.parameters(), second.parameters(), strict=True):
        assert ours.dtype == made.dtype and torch.equal(ours, made) and torch.equal(theirs, made)
        assert ours.data_ptr() % 64 == 0
    save_model(second, usual, max_shard_bytes)
    copied.mkdir()
    copy_weights(folder, copied)
    assert {file.name: file.read_bytes() for file in copied.iterdir()} == {
        file.name: file.read_bytes() for file in usual.iterdir()
    }
    if len(files) == 1:  # what is written there is seen by whoever has mapped it, in all parameters: nothing was copied
        save_model(first, folder, reserved=True)
        assert all(torch.equal(a, b) for a, b in zip(mapped.parameters(), first.parameters(), strict=True))


def test_generation_config_is_kept_and_its_ends_are_read(folder: Path, tmp_path: Path) -> None:
    generation = {"eos_token_id": [7, 9], "temperature": 0.6, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    model = load_model(folder)
    assert model.config.eos_token_ids == (7, 9)
    save_model(model, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text()) == generation
    shutil.rmtree(tmp_path / "again")
    save_model(model, tmp_path / "again", dtype=torch.bfloat16)
    assert json.loads((tmp_path / "again" / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_file(tmp_path / "again" / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16


def test_the_preset_is_a_function_of_its_seed() -> None:
    model, other = load_model("hone/tiny"), load_model("hone/tiny", seed=1)
    drawn = rng.stream(0, "init", "embed").standard_normal((260, 128), dtype=np.float32) * np.float32(0.02)
    assert torch.equal(model.embed, torch.from_numpy(drawn)) and not torch.equal(model.embed, other.embed)


@pytest.mark.parametrize(("value", "dtype"), [(math.nan, "float32"), (-math.inf, "float32"), (3.4e38, "bfloat16")])
def test_weights_that_are_not_finite_are_refused(folder: Path, value: float, dtype: str) -> None:
    weights = load_file(folder / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]
    weights[3, :2] = value
    edit_weights(folder, **{"model.layers.0.mlp.up_proj.weight": weights})
    with pytest.raises(UserError, match=f"2 values of model.layers.0.mlp.up_proj.weight are not finite in {dtype}"):
        load_model(folder, dtype=getattr(torch, dtype))


def test_names_of_tensors_are_printed_safely(folder: Path) -> None:
    edit_weights(folder, **{"\x1b[2J": torch.ones(1)})
    refuses(folder, r"have unknown \\x1b\[2J;")
