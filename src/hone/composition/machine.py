"""Threads, device and kernels of this process: pinned where a run has to be repeatable."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hone.errors import UserError
from hone.orchestrator.placement import CORES, share_of_cores
from hone.trainer.parallel import ALONE, Ranks

SMALL_MODEL = 10_000_000
"""Below this many parameters a second thread costs more than it brings (and far more on a busy machine)."""


def device_of(name: str) -> str:
    """Resolve `auto`: CUDA if there is one, else the CPU. Raises UserError if this machine lacks the device."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"model.device = {name!r} is no device that hone runs on: use auto, cpu, cuda or cuda:1")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"model.device = {name!r}, but torch finds no CUDA device here: use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"model.device = {name!r}, but there are {torch.cuda.device_count()} CUDA devices, counted from cuda:0"
        )
    return name


def _tune_malloc(ranks: Ranks) -> None:
    """Tell glibc how to treat freed memory; does nothing on other C libraries.

    Alone it is reused instead of given back to the system: mapping and clearing activations of a few MB anew took a
    fifth of an SFT step of the tiny preset (63 ms against 50 ms). A model in shards gathers and frees its layers all
    the time, which leaves gaps in the heap: given back at once, 61M parameters take 950 MiB a rank, not 1,550.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return
    mallopt(_M_MMAP_THRESHOLD, 32 * 2**20 if ranks.alone else 2**20)
    if ranks.alone:
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def configure(threads: int | None, parameters: int, deterministic: bool = True, ranks: Ranks = ALONE) -> int:
    """Set the number of CPU threads and, if asked, deterministic kernels; returns the number of threads.

    Without `threads`: 1 for a small model, else one per core that this process may use, of which several ranks on a
    machine have equal shares.
    """
    _tune_malloc(ranks)
    cores = int(os.environ.get(CORES) or share_of_cores(1))  # its share of them, where a run's roles share the machine
    count = threads or (1 if parameters < SMALL_MODEL else max(1, cores // ranks.local_world))
    torch.set_num_threads(count)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Writing NaN into every fresh tensor is for finding reads of unset memory; it costs 5 % of a step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    return count


@contextmanager
def kept_settings() -> Iterator[None]:
    """Put threads and kernels back, whatever `configure` made of them in the block."""
    threads, pinned = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(pinned, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # pyright: ignore[reportAttributeAccessIssue]
