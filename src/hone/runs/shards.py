"""Tensors that several ranks wrote together, each its rows: `FOLDER/trainer/`, by `torch.distributed.checkpoint`.

Its index is a pickle, which could run code of whoever made the checkpoint. Here nothing is made of it but the records
that such an index consists of.
"""

from __future__ import annotations

import io
import math
import pickle
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hone.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.filesystem import FileSystemReader
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
"""What an index may name: module → names; of torch its dtypes as well."""
_CALLED = ("_MEM_FORMAT_ENCODING", "_get_layout", "Size", "Path", "PosixPath", "PurePosixPath")
"""Those of the names that are called, with numbers and texts; the others are classes whose fields are filled in."""
_OPCODES = (
    *("PROTO", "FRAME", "STOP", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MARK", "POP", "POP_MARK"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT"),
    *("SETITEM", "SETITEMS", "STACK_GLOBAL", "NEWOBJ", "REDUCE", "BUILD"),
)
"""Instructions of a pickle that an index may have."""


def is_sharded(folder: Path) -> bool:
    """Return True if `folder` holds tensors that several ranks wrote."""
    return (folder / FOLDER).is_dir()


_Python: Any = getattr(pickle, "_Unpickler")  # noqa: B009 (type checkers do not know it)


class _Unpickler(_Python):
    """Fills fields of new records and calls what makes numbers, paths and dtypes; whatever else a pickle can do fails.

    The one in C can't be kept from setting attributes of the classes that it is given.
    """

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {
        code: _Python.dispatch[code] for name in _OPCODES for code in getattr(pickle, name)
    }

    def find_class(self, module: str, name: str) -> Any:
        import torch

        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if name not in _NAMES.get(module, ()):
            raise UserError(f"the checkpoint's index names {module}.{name}, which no such index does: do not use it")
        return super().find_class(module, name)

    def load_newobj(self) -> None:
        arguments, made = self.stack.pop(), self.stack.pop()
        if arguments != () or not (isinstance(made, type) and is_dataclass(made)):
            raise ValueError("it makes what is no record")
        self.append(made.__new__(made))

    def load_reduce(self) -> None:
        arguments, called = self.stack.pop(), self.stack[-1]
        plain = all(isinstance(x, int | str) or (type(x) is tuple and {*map(type, x)} <= {int}) for x in arguments)
        if getattr(called, "__name__", "") not in _CALLED or not plain:
            raise ValueError("it calls what makes no number, path or dtype")
        self.stack[-1] = called(*arguments)

    def load_build(self) -> None:
        from torch.distributed.checkpoint.metadata import TensorProperties

        state, record = self.stack.pop(), self.stack[-1]
        if isinstance(record, type) or not is_dataclass(record):
            raise ValueError("it sets attributes of what is no record")
        if type(state) is dict and state.keys() <= {field.name for field in fields(record)}:
            vars(record).update(state)
        elif isinstance(record, TensorProperties):
            record.__setstate__(state)
        else:
            raise ValueError(f"it sets attributes that a {type(record).__name__} does not have")

    def load_setitem(self) -> None:
        _check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        _check_keys(self.stack[::2])
        super().load_setitems()

    dispatch |= {pickle.NEWOBJ[0]: load_newobj, pickle.REDUCE[0]: load_reduce, pickle.BUILD[0]: load_build}
    dispatch |= {pickle.SETITEM[0]: load_setitem, pickle.SETITEMS[0]: load_setitems}


def _check_keys(keys: Sequence[Any]) -> None:
    """Raise ValueError for a key that may take for ever to hash, as tuples of tuples do."""
    for key in keys:
        facts = (key.fqn, *(key.offset or ())) if type(key).__name__ == "MetadataIndex" else (key,)
        if not all(isinstance(fact, int | str) for fact in facts):
            raise ValueError("it has a key that is no name of a tensor")


def _read_index(folder: Path) -> Metadata:
    """Read the index of the tensors in `folder`. UserError for one that `save` does not write."""
    try:
        metadata = _Unpickler(io.BytesIO((folder / ".metadata").read_bytes())).load()
        tensors = sum(_bytes(stored) for stored in metadata.state_dict_metadata.values())
        if tensors > sum(file.stat().st_size for file in folder.iterdir()):
            raise ValueError("its tensors are larger than their files")
        for stored in (metadata.storage_data or {}).values():
            name = stored.relative_path
            if name in (".", "..") or Path(name).name != name or stored.transform_descriptors:
                raise ValueError(f"it reads {name!r}, which is no file beside it")
    except (UserError, OSError):
        raise
    except Exception as error:  # whatever a pickle may run into
        raise UserError(
            f"the checkpoint's index {folder / '.metadata'} can't be read ({error}): do not use it"
        ) from error
    return metadata


def _bytes(stored: Any) -> int:
    """Compute the bytes of a tensor by its shape and dtype; 0 for anything else."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    if not isinstance(stored, TensorStorageMetadata):
        return 0
    if min(stored.size, default=0) < 0:
        raise ValueError("it has a tensor of a negative size")
    return math.prod(stored.size) * stored.properties.dtype.itemsize


def reader(folder: Path) -> FileSystemReader:
    """Return what reads the tensors in `folder`, for `torch.distributed.checkpoint.load`."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            return _read_index(folder / FOLDER)

    return Reader(folder / FOLDER)


def shapes(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors by group and name, without their content: on torch's device `meta`."""
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
    """Return the tensors by group and name; with `only`, those of that group.

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
    """Write the tensors by group and name, each rank of `process_group` its rows; all ranks together.

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
    """Put them in order of name, so that equal tensors make equal files in whatever order an optimiser holds them."""
    flat = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
    return dict(sorted(flat.items()))
