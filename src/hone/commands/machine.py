"""Threads, device and kernels of this process: pinned where a run has to be repeatable."""

from __future__ import annotations

import os

import torch

SMALL_MODEL = 10_000_000
"""Below this many parameters a second thread costs more than it brings (and far more on a busy machine)."""


def device_of(name: str) -> str:
    """`auto` resolved: CUDA if there is one, else the CPU."""
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def configure(threads: int | None, parameters: int, deterministic: bool = True) -> int:
    """Sets the number of CPU threads and, if asked, deterministic kernels; returns the number of threads.

    Without `threads`: 1 for a small model, else one per core that this process may use.
    """
    count = threads or (1 if parameters < SMALL_MODEL else len(os.sched_getaffinity(0)))
    torch.set_num_threads(count)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    return count
