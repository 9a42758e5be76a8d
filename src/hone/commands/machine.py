"""Threads, device and kernels of this process: pinned where a run has to be repeatable."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

SMALL_MODEL = 10_000_000
"""Below this many parameters a second thread costs more than it brings (and far more on a busy machine)."""


def device_of(name: str) -> str:
    """`auto` resolved: CUDA if there is one, else the CPU."""
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


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
    count = threads or (1 if parameters < SMALL_MODEL else len(os.sched_getaffinity(0)))
    torch.set_num_threads(count)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Writing NaN into every fresh tensor is for finding reads of unset memory; it costs 5 % of a step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    return count
