"""Tensors in `FOLDER/trainer/`. Each rank writes its own rows, with `torch.distributed.checkpoint`.

The index file is a pickle, and a pickle can run its author's code. This module lets the file make only an index.
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
    from torch.distributed.checkpoint.metadata import Metadata

FOLDER = "trainer"
_NAMES = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "TensorProperties"),
        *("ChunkStorageMetadata", "BytesStorageMetadata", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "pathlib": ("Path", "PosixPath", "PurePosixPath"),
    "pathlib._local": ("Path", "PosixPath", "PurePosixPath"),
}
"""Names that an index may use, by module; torch's dtypes are allowed, too. They run no code of the index."""


def is_sharded(folder: Path) -> bool:
    return (folder / FOLDER).is_dir()


class _Unpickler(pickle.Unpickler):
    """Makes only the records, numbers and paths of an index. A plain unpickler could run any code."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name not in _NAMES.get(module, ()):
            raise UserError(f"the index names {module}.{name}, which is not allowed: do not use the checkpoint")
        return super().find_class(module, name)


def _read_index(folder: Path) -> Metadata:
    """Read the index of the tensors in `folder`. Raises UserError if `save` cannot have written it."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    path = folder / ".metadata"
    with open(path, "rb") as file:
        try:
            metadata = _Unpickler(file).load()
            for key, stored in metadata.state_dict_metadata.items():
                if not isinstance(stored, TensorStorageMetadata):  # any other is read as a pickle
                    raise ValueError(f"{key} is not a tensor")
            for stored in (metadata.storage_data or {}).values():
                name = stored.relative_path
                if name in (".", "..") or Path(name).name != name or stored.transform_descriptors:
                    raise ValueError(f"{name!r} is no file in its folder")
        except UserError:
            raise
        except Exception as error:  # whatever a pickle may run into
            raise UserError(f"the index {path} can't be read ({error}): do not use the checkpoint") from error
    return metadata


def shapes(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors by group and name without their values, on torch's device `meta`."""
    import torch

    groups: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimizer": {}}  # an optimiser may have no state yet
    index: Any = _read_index(folder / FOLDER)
    for key, stored in index.state_dict_metadata.items():
        group, name = key.split("/", 1)
        groups.setdefault(group, {})[name] = torch.empty(stored.size, dtype=stored.properties.dtype, device="meta")
    return groups


def load(
    folder: Path,
    make: Callable[[str, torch.Tensor], torch.Tensor] | None = None,
    process_group: Any = None,
    only: str = "",
) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors by group and name, or only the group `only`. By default, load whole tensors onto the CPU.

    With `make`, load values into the tensors that `make("group/name", meta tensor)` returns. If these are sharded, all
    ranks of `process_group` load together, and each rank loads its rows.
    """
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_together

    reader: Any = FileSystemReader(folder / FOLDER)
    reader.read_metadata = lambda *args, **kwargs: _read_index(folder / FOLDER)
    groups = {group: named for group, named in shapes(folder).items() if only in ("", group)}
    for group, named in groups.items():
        for name, shape in named.items():
            named[name] = torch.empty_like(shape, device="cpu") if make is None else make(f"{group}/{name}", shape)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is meant
        load_together(_flat(groups), storage_reader=reader, process_group=process_group, no_dist=make is None)
    return groups


def save(folder: Path, groups: dict[str, dict[str, torch.Tensor]], process_group: Any) -> None:
    """Write the tensors: each rank of `process_group` writes its rows. A rank's error is raised on all ranks."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    try:
        save_together(_flat(groups), storage_writer=FileSystemWriter(folder / FOLDER), process_group=process_group)
    except CheckpointException as error:  # no Exception, and it quotes the tracebacks of all ranks
        first = min(error.failures)
        raise error.failures[first][0] from None


def _flat(groups: dict[str, dict[str, torch.Tensor]]) -> dict[str, Any]:
    """Return the tensors sorted by `group/name`, so that equal tensors make equal files."""
    flat = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
    return dict(sorted(flat.items()))
