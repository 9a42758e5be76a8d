"""Versions of a model on their way to a server: through memory as long as that has room, then by disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hone.config.shared import InitConfig
from hone.model.hf import load_model
from hone.model.presets import random_decoder, tiny_config
from hone.runs.files import FILE_MODE
from hone.trainer.export import Spool

SMALL = InitConfig(layers=1, hidden=16, heads=2, kv_heads=1, head_dim=8, intermediate=24)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_last_two_versions_stay_in_memory_and_the_next_is_on_the_disk_once_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype | None
) -> None:
    model, memory, full = random_decoder(tiny_config(SMALL)), tmp_path / "memory", []
    memory.mkdir()
    spool = Spool(tmp_path / "disk", model, memory, lambda: full.append(True), dtype=dtype)
    files = []

    def put(version: int) -> Path:
        with torch.no_grad():
            model.embed.fill_(version + 1 / 3)
        folder = spool.put(version)
        assert folder.name == f"step_{version}"
        tensors = load_file(folder / "model.safetensors")
        assert {tensor.dtype for tensor in tensors.values()} == {dtype or torch.float32}
        expected = model.embed.detach() if dtype is None else model.embed.detach().to(dtype)
        assert torch.equal(tensors["model.embed_tokens.weight"], expected)
        assert torch.equal(load_model(folder).embed, expected.float())
        facts = (folder / "model.safetensors").stat()
        assert facts.st_mode & 0o777 == FILE_MODE, "a server of another user reads it"
        files.append(facts.st_ino)
        return folder.parent

    assert [put(version) for version in range(3)] == [memory] * 3
    assert sorted(os.listdir(memory)) == ["step_1", "step_2"] and files[2] == files[0] != files[1]

    def no_room(*_: int) -> None:
        raise OSError(28, "no room")

    monkeypatch.setattr("os.posix_fallocate", no_room)
    assert put(3) == memory, "in the place of version 1"
    (memory / "step_2" / "model.safetensors").write_bytes(b"")
    assert [put(version) for version in range(4, 7)] == [tmp_path / "disk"] * 3
    assert full == [True] and os.listdir(memory) == [] and sorted(os.listdir(tmp_path / "disk")) == ["step_5", "step_6"]
