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


METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"


def named(module: str, name: str) -> bytes:
    return b"".join(pickle.SHORT_BINUNICODE + bytes([len(s)]) + s.encode() for s in (module, name)) + b"\x93"


def text(value: str) -> bytes:
    return pickle.SHORT_BINUNICODE + bytes([len(value)]) + value.encode()


CRAFTED = {
    "BUILD on a class": named(FILESYSTEM, "_StorageInfo") + b"N}" + text("forged") + b"K\x07s\x86b",
    "a slot state": named(FILESYSTEM, "_StorageInfo") + b")\x81N}" + text("__class__") + b"Ns\x86b",
    "a foreign field": named(METADATA, "StorageMeta") + b")\x81}" + text("__setstate__") + b"Nsb",
    "a call of a record": named(METADATA, "MetadataIndex") + text("x") + b"\x85R",
    "a nested name": named(METADATA, "Metadata.__init__"),
    "an object by its class": named("torch", "Size") + b")\x81",
    "an extension code": b"\x82\x01",
    "a persistent id": text("x") + b"Q",
    "a huge memory": b"\x96" + (2**62).to_bytes(8, "little"),
    "a key that takes for ever": b"}K\x01" + b"".join(b"q%cq%ch%c\x86" % (i, i, i) for i in range(99)) + b"Ns",
    "arguments that cost": named("torch", "Size") + b"((K\x01ttR",
}


@pytest.mark.parametrize("what", CRAFTED)
def test_an_index_that_does_anything_but_fill_records_is_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / shards.FOLDER).mkdir()
    (tmp_path / shards.FOLDER / ".metadata").write_bytes(b"\x80\x04" + CRAFTED[what] + b".")
    with pytest.raises(UserError, match="do not use it"):
        shards.shapes(tmp_path)
    assert not hasattr(_StorageInfo, "forged")


def an_index(**changes: Any) -> Metadata:
    chunk = ChunkStorageMetadata(torch.Size([0]), torch.Size([2]))
    tensor = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([2]), [chunk])
    for name in changes.keys() & {"size"}:
        tensor.size = changes[name]
    stored = _StorageInfo(changes.get("file", "__0_0.distcp"), 0, 8)
    return Metadata({"model/embed": tensor}, storage_data={MetadataIndex("model/embed", torch.Size([0])): stored})


@pytest.mark.parametrize(
    "change",
    [{"file": "/etc/hostname"}, {"file": "../model"}, {"file": ".."}, {"size": torch.Size([2**40])}],
)
def test_an_index_reads_its_own_files_and_no_more_than_they_hold(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "good").mkdir()
    with pytest.raises(UserError, match="do not use it"):
        shards.shapes(with_index(tmp_path / "bad", an_index(**change)))
    (shape,) = shards.shapes(with_index(tmp_path / "good", an_index()))["model"].values()
    assert shape.shape == (2,) and shape.dtype == torch.float32


def test_an_index_of_more_than_tensors_is_refused(tmp_path: Path) -> None:
    folder = with_index(tmp_path, Metadata({"model/embed": BytesStorageMetadata()}))
    with pytest.raises(UserError, match="model/embed, which is no tensor"):
        shards.load(folder)
