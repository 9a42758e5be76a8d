"""Checkpoints come back as they were, or are called damaged; an index that somebody else made runs no code.

Of several ranks the index of the tensors is a pickle.
"""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from hone.errors import UserError
from hone.runs import shards
from hone.runs.checkpoint import Checkpoints

STATE = {"step": 4, "ledger": [[1, "trained"]], "position": 2**63 + 5, "lr": 0.1, "none": None}


def tensors():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(4, 6, generator=generator)
    return {
        "model": {"w": matrix, "transposed": matrix.T, "half": matrix.bfloat16()},
        "optimizer": {"step": torch.tensor(3), "mask": matrix > 0, "state": generator.get_state()},
    }


def test_round_trip_and_equal_content_gives_equal_bytes(tmp_path):
    first = Checkpoints(tmp_path / "a").save(4, tensors(), STATE)
    loaded, state = Checkpoints(tmp_path / "a").load(4)
    assert state == STATE and list(state) == list(STATE) and loaded.keys() == tensors().keys()
    for group, named in tensors().items():
        assert loaded[group].keys() == named.keys()
        for name, tensor in named.items():
            assert tensor.dtype == loaded[group][name].dtype and torch.equal(tensor, loaded[group][name]), name
    before = {p.name: p.read_bytes() for p in first.iterdir()}
    other = Checkpoints(tmp_path / "b").save(4, dict(reversed(tensors().items())), STATE)
    assert before.keys() == {"model.safetensors", "optimizer.safetensors", "state.json", "COMPLETE"}
    assert {p.name: p.read_bytes() for p in other.iterdir()} == before
    Checkpoints(tmp_path / "a").save(4, tensors(), STATE | {"lr": 0.2})
    assert Checkpoints(tmp_path / "a").load(4)[1]["lr"] == 0.2
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["step_4"]


def test_newest_skips_damaged_ones_and_says_so(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (2, 10, 9):
        checkpoints.save(step, tensors(), STATE)
    file = checkpoints.path(10) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    (checkpoints.path(9) / "state.json").unlink()
    step, warnings = checkpoints.newest()
    assert step == 2
    assert warnings == [
        "checkpoint step_10 is damaged (model.safetensors has changed since it was written (SHA-256 differs)) "
        "and is not used",
        "checkpoint step_9 is damaged (state.json is missing) and is not used",
    ]
    assert checkpoints.remedy(but=10) == "complete checkpoints: 2 (--resume.step 2)"


def test_surplus_leaves_the_newest_complete_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    for step in (1, 2, 3, 10):
        checkpoints.save(step, {}, {})
    (checkpoints.path(10) / "COMPLETE").unlink()
    assert checkpoints.surplus() == [1]
    assert Checkpoints(tmp_path).surplus() == []


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


def index(file: str = "__0_0.distcp") -> Metadata:
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))
    tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([2]), [chunk])
    stored = {MetadataIndex("model/embed", torch.Size([0])): _StorageInfo(file, 0, 8)}
    return Metadata({"model/embed": tensor}, storage_data=stored)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Call(os.mkdir, "made"), r"names posix\.mkdir"),
        (Call(torch.load, "made"), r"names torch\.serialization\.load"),
        (Call(getattr, "a", "b"), r"names builtins\.getattr"),
        (index("/etc/hostname"), "is no file in its folder"),
        (index("../model"), "is no file in its folder"),
        (index(".."), "is no file in its folder"),
        (Metadata({"model/embed": BytesStorageMetadata()}), "model/embed is not a tensor"),
        (index(), None),
    ],
)
def test_an_index_reads_tensors_of_its_own_files_only(tmp_path: Path, monkeypatch, content: Any, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / shards.FOLDER).mkdir()
    (tmp_path / shards.FOLDER / ".metadata").write_bytes(pickle.dumps(content))
    if message is None:
        (shape,) = shards.shapes(tmp_path)["model"].values()
        assert shape.shape == (2,) and shape.dtype == torch.float32
        return
    with pytest.raises(UserError, match=f"{message}.*do not use the checkpoint"):
        shards.shapes(tmp_path)
    assert not (tmp_path / "made").exists()
