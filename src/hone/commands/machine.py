"""Threads, device and kernels of this process: pinned where a run has to be repeatable."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

from hone.errors import UserError

SMALL_MODEL = 10_000_000
"""Below this many parameters a second thread costs more than it brings (and far more on a busy machine)."""


def device_of(name: str) -> str:
    """`auto` resolved: CUDA if there is one, else the CPU. UserError for a device that this machine does not have."""
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


def usable_cores() -> int:
    """Cores that this process may use; where the system cannot say (macOS), those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Tells glibc to reuse freed memory instead of giving it back to the system; does nothing on other C libraries.

    Activations of a few MB are allocated and freed all the time; mapping and clearing them anew took a fifth of an SFT
    step of the tiny preset (63 ms against 50 ms).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        m_trim_threshold, m_mmap_threshold = -1, -3
        mallopt(m_mmap_threshold, 32 * 2**20)
        mallopt(m_trim_threshold, 2**31 - 1)


def configure(threads: int | None, parameters: int, deterministic: bool = True) -> int:
    """Sets the number of CPU threads and, if asked, deterministic kernels; returns the number of threads.

    Without `threads`: 1 for a small model, else one per core that this process may use.
    """
    keep_freed_memory()
    count = threads or (1 if parameters < SMALL_MODEL else usable_cores())
    torch.set_num_threads(count)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Writing NaN into every fresh tensor is for finding reads of unset memory; it costs 5 % of a step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    return count
