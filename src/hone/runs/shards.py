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


def shapes(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors by group and name, without their content: on torch's device `meta`."""
    import torch
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    groups: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimizer": {}}  # an optimiser may have no state yet
    for key, stored in reader(folder).read_metadata().state_dict_metadata.items():
        if not isinstance(stored, TensorStorageMetadata):  # any other is read as a pickle
            raise UserError(
                f"the checkpoint's index has {key}, which is no tensor, as no such index does: do not use it"
            )
        group, name = key.split("/", 1)
        groups[group][name] = torch.empty(stored.size, dtype=stored.properties.dtype, device="meta")
    return groups


def load(
    folder: Path,
    make: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
    process_group: Any = None,
    only: str = "",
) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors by group and name; with `only`, those of that group.

    Into what `make(group/name, its shape)` returns, which may be in shards: then all ranks of `process_group` load
    together, each its rows. By default whole and on the CPU, in this process alone.
    """
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load as load_together

    groups = {group: named for group, named in shapes(folder).items() if only in ("", group)}
    for group, named in groups.items():
        for name, shape in named.items():
            named[name] = torch.empty_like(shape, device="cpu") if make is None else make(f"{group}/{name}", shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant
        load_together(_flat(groups), storage_reader=reader(folder), process_group=process_group, no_dist=make is None)
    return groups


def save(folder: Path, groups: dict[str, dict[str, torch.Tensor]], process_group: Any) -> None:
    """Writes the tensors by group and name, each rank of `process_group` its rows; all ranks together.

    What one rank fails with, a full disk for example, is raised on all.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    try:
        save_together(_flat(groups), storage_writer=FileSystemWriter(folder / FOLDER), process_group=process_group)
    except CheckpointException as error:  # no Exception, and it quotes the tracebacks of all ranks
        first = min(error.failures)
        raise error.failures[first][0] from None


def _flat(groups: dict[str, dict[str, torch.Tensor]]) -> dict[str, Any]:
    """In order of name, so that equal tensors make equal files, whatever order an optimiser came to hold them in."""
    flat = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
    return dict(sorted(flat.items()))
