"""Tensors that several ranks wrote together, each its rows: `FOLDER/trainer/`, by `torch.distributed.checkpoint`.

Its index is a pickle, which could run code of whoever made the checkpoint. Here nothing is made of it but the records
that such an index consists of.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata

FOLDER = "trainer"
_RECORDS = {
    "torch.distributed.checkpoint.metadata": None,
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "device"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}
"""What an index may name: module → names (None: every class of it)."""


def is_sharded(folder: Path) -> bool:
    """Whether `folder` holds tensors that several ranks wrote."""
    return (folder / FOLDER).is_dir()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        allowed = _RECORDS.get(module, set())
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        found = super().find_class(module, name) if allowed is None or name in allowed else None
        if found is None or (allowed is None and not (isinstance(found, type) and found.__module__ == module)):
            raise UserError(f"the checkpoint's index names {module}.{name}, which no such index does: do not use it")
        return found


def reader(folder: Path) -> FileSystemReader:
    """What reads the tensors in `folder`, for `torch.distributed.checkpoint.load`."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            with open(folder / FOLDER / ".metadata", "rb") as file:
                return _Unpickler(file).load()

    return Reader(folder / FOLDER)


def load(
    folder: Path, make: Callable[[str, torch.Size, torch.dtype], torch.Tensor] | None = None, group: Any = None
) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors by group and name.

    Into what `make(group/name, shape, dtype)` returns, which may be in shards: then all ranks of the process group
    `group` load together, each its rows. By default whole and on the CPU, in this process alone.
    """
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as load_together

    source = reader(folder)
    tensors = {}
    for key, stored in source.read_metadata().state_dict_metadata.items():
        assert isinstance(stored, TensorStorageMetadata), key
        shape, dtype = stored.size, stored.properties.dtype
        tensors[key] = torch.empty(shape, dtype=dtype) if make is None else make(key, shape, dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant
        load_together(tensors, storage_reader=source, process_group=group, no_dist=make is None)
    groups: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimizer": {}}  # an optimiser may have no state yet
    for key, tensor in tensors.items():
        group_name, name = key.split("/", 1)
        groups[group_name][name] = tensor
    return groups


def save(folder: Path, tensors: dict[str, dict[str, torch.Tensor]], group: Any) -> None:
    """Writes the tensors by group and name, each rank of the process group `group` its rows; all ranks together."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    flat = {f"{group_name}/{name}": tensor for group_name, named in tensors.items() for name, tensor in named.items()}
    save_together(flat, storage_writer=FileSystemWriter(folder / FOLDER), process_group=group)
