"""The index of tensors that several ranks wrote is a pickle: reading one that somebody else made runs no code."""

from __future__ import annotations

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


def with_index(folder: Path, content: Any) -> Path:
    (folder / shards.FOLDER).mkdir()
    (folder / shards.FOLDER / ".metadata").write_bytes(pickle.dumps(content))
    return folder


class Command:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> Any:
        return self.called


@pytest.mark.parametrize(
    ("function", "name"),
    [(os.mkdir, "posix.mkdir"), (torch.load, "torch.serialization.load"), (getattr, "builtins.getattr")],
)
def test_an_index_that_calls_anything_is_refused(function: Any, name: str, tmp_path: Path) -> None:
    folder = with_index(tmp_path, Command(function, str(tmp_path / "made")))
    with pytest.raises(UserError, match=f"names {name}"):
        shards.shapes(folder)
    assert not (tmp_path / "made").exists()


def an_index(file: str) -> Metadata:
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))
    tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([2]), [chunk])
    stored = _StorageInfo(file, 0, 8)
    return Metadata({"model/embed": tensor}, storage_data={MetadataIndex("model/embed", torch.Size([0])): stored})


@pytest.mark.parametrize("file", ["/etc/hostname", "../model", ".."])
def test_an_index_reads_its_own_files_only(file: str, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "good").mkdir()
    with pytest.raises(UserError, match="do not use it"):
        shards.shapes(with_index(tmp_path / "bad", an_index(file)))
    (shape,) = shards.shapes(with_index(tmp_path / "good", an_index("__0_0.distcp")))["model"].values()
    assert shape.shape == (2,) and shape.dtype == torch.float32


def test_an_index_of_more_than_tensors_is_refused(tmp_path: Path) -> None:
    folder = with_index(tmp_path, Metadata({"model/embed": BytesStorageMetadata()}))
    with pytest.raises(UserError, match="model/embed is no tensor"):
        shards.load(folder)
