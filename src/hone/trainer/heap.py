"""Sets when glibc (no other C library) returns freed memory to the system."""

from __future__ import annotations

import ctypes
import sys

from hone.hardware import resident_bytes

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
GROWTH = 256 * 2**20
"""`Heap` returns freed memory after the process has grown by this many bytes."""


def tune(alone: bool) -> None:
    """Set glibc's thresholds.

    If `alone`, the process does not return freed memory: an SFT step of the tiny preset then takes 50 ms instead of 63
    ms. Several ranks return memory at once, because gathered and freed layers leave gaps in the heap: 61M parameters
    then take 950 MiB a rank instead of 1,550.
    """
    if _LIBC is None or not hasattr(_LIBC, "mallopt"):
        return
    _LIBC.mallopt(_M_MMAP_THRESHOLD, 32 * 2**20 if alone else 2**20)
    if alone:
        _LIBC.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


class Heap:
    """Returns freed memory to the system whenever the process has grown by `GROWTH`.

    oneDNN compiles and stores kernels for each number of tokens. These kernels lie between activations, and leave gaps
    that are too small for new activations. With four layers of SmolLM2's size, each bf16 SFT step took 50 MB more.
    """

    def __init__(self) -> None:
        self._usual: int | None = None

    def trim(self) -> None:
        if _LIBC is None or not hasattr(_LIBC, "malloc_trim"):
            return
        size = resident_bytes()
        if self._usual is None:
            self._usual = size
        elif size > self._usual + GROWTH:
            _LIBC.malloc_trim(0)
            self._usual = None
