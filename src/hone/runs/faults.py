"""What the machine refuses in the middle of a run, in words: a full disk, an I/O error, no memory."""

from __future__ import annotations

import errno
from pathlib import Path

from hone.runs.files import NEW_PREFIX, error_number

_DISK = {
    errno.ENOSPC: ("the disk is full", "free some space"),
    errno.EDQUOT: ("the disk quota is used up", "free some space"),
    errno.EIO: ("the disk reports an I/O error", "check the disk"),
    errno.EROFS: ("the file system is read-only", "make it writable"),
    errno.EACCES: ("writing is not permitted", "make the folder writable"),
    errno.EPERM: ("writing is not permitted", "make the folder writable"),
    errno.ESTALE: ("the network file system has lost the file", "mount it again"),
}
_NO_MEMORY = "lower --trainer.micro-batch-tokens (rl) or --data.micro-batch-tokens (sft), or the batch size"


def explain(error: BaseException, folder: Path) -> tuple[str, str] | None:
    """(cause, remedy) if the machine is to blame for `error`; None if it may be a bug, or a file of the user's.

    Of file errors only those are the run's that concern a file below `folder`, or name none.
    """
    if is_out_of_memory(error):
        return "out of memory", _NO_MEMORY
    number, files = error_number(error), _files(error)
    own = [file for file in files if folder.resolve() in Path(file).resolve().parents]
    if number not in _DISK or (files and not own):
        return None
    cause, remedy = _DISK[number]
    name = own[0].replace(NEW_PREFIX, "") if own else folder  # the name that the file was to have in the end
    return f"{cause} ({name})", remedy


def _files(error: BaseException) -> list[str]:
    """The files that a system error names: two if it is of a copy, which may be to blame on either."""
    named = (error.filename, error.filename2) if isinstance(error, OSError) else ()
    return [str(name) for name in named if name is not None]


def is_out_of_memory(error: BaseException) -> bool:
    """Python's, the system's, PyTorch's on a GPU, and PyTorch's on a CPU, which is a plain RuntimeError."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    named = type(error).__name__ == "OutOfMemoryError"  # torch.OutOfMemoryError, without importing torch
    return named or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
