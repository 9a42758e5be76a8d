"""What the machine refuses is told in words; what may be a bug is not."""

import errno
import os

import pytest
import torch

from hone.errors import UserError
from hone.runs.signals import explain


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk quota is used up"),
        (errno.EIO, "the disk reports an I/O error"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "writing is not permitted"),
    ],
)
def test_the_systems_errors(tmp_path, number, cause):
    file = tmp_path / "checkpoints" / "step_2"
    explained = explain(OSError(number, os.strerror(number), str(file)), tmp_path)
    assert explained is not None and explained[0] == f"{cause} ({file})"
    without_file = explain(OSError(number, os.strerror(number)), tmp_path)
    assert without_file is not None and without_file[0] == f"{cause} ({tmp_path})"
    assert explain(OSError(number, os.strerror(number), "/elsewhere/rows.jsonl"), tmp_path) is None


def test_memory(tmp_path):
    errors = [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), torch.OutOfMemoryError("CUDA")]
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    for error in [*errors, raised.value]:
        explained = explain(error, tmp_path)
        assert explained is not None and explained[0] == "out of memory" and "micro-batch-tokens" in explained[1]


@pytest.mark.parametrize(
    "error", [RuntimeError("shape mismatch"), UserError("a typo"), FileNotFoundError(2, "no", "x"), KeyboardInterrupt()]
)
def test_what_is_not_the_machines_fault(tmp_path, error):
    assert explain(error, tmp_path) is None
