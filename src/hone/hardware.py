"""The GPUs, cores and memory that a process may use, and sizes for kernels. Standard library only."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

CORES = "HONE_CORES"
"""Environment variable: number of cores that a process may use."""
SHARES_GPU = "HONE_SHARES_GPU"
"""Environment variable: 1 if the run's server also uses the trainer's first GPU."""
MIN_FP32_SIZE = 2**18
"""Fewest elements of an fp32 weight that is packed; for smaller weights, plain products are as fast on one thread."""
HEAD_CACHE_BYTES = 512 * 2**20
"""Default of `head_cache_bytes` on a CPU, and the smallest default on a GPU."""
CACHE_SHARE = 16
"""On a GPU, a chunk of the head may have `head_cache_bytes` / CACHE_SHARE logits. Chunks are large, because each
chunk reads and writes the whole gradient of the head's weight."""
MARGIN = 0.05
"""Share of a device's memory that stays free, because memory is fragmented and plans are not exact."""
MAX_PACKED_BYTES = 8 * 2**30
"""Weights of larger models are not packed, because packing doubles their memory."""


def visible_gpus(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs that this process may use: CUDA_VISIBLE_DEVICES if set, else all GPUs that the driver lists."""
    named = env.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        listed = [name.strip() for name in named.split(",")]
        # As in CUDA, entries after an invalid one do not count.
        end = next((index for index, name in enumerate(listed) if name in ("", "-1")), len(listed))
        return listed[:end]
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        listing = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = listing.stdout.splitlines() if listing.returncode == 0 else []
    return [str(index) for index, _ in enumerate(line for line in lines if line.startswith("GPU "))]


def has_gpu_driver() -> bool:
    return any(Path(path).exists() for path in ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/nvidiactl"))


@functools.cache
def takes_products_in_fp32(device: str) -> bool:
    """Return True for a CPU that is slow in bf16, so that `hone.model.packed` multiplies in fp32."""
    cpuinfo = Path("/proc/cpuinfo")
    if device != "cpu" or not cpuinfo.exists():
        return False
    words = set(cpuinfo.read_text().split())
    return not ({"avx512bw", "avx512vl", "avx512dq"} <= words or "bf16" in words)  # of x86, or of ARM


def padded_rows(rows: int) -> int:
    """Round `rows` up by at most 1/8 or 15, to a multiple of 16, so that few different numbers occur.

    oneDNN compiles a kernel for each new shape, and stores a thousand kernels. A new number of tokens in every step
    would double the time of a product and take 20 MB more each step.
    """
    granule = max(16, (1 << (rows - 1).bit_length()) // 16)
    return -(-rows // granule) * granule


def share_of_cores(processes: int) -> int:
    """Divide the cores that this process may use (on macOS: all) by `processes`; return at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, processes))


CGROUP = Path("/sys/fs/cgroup")


def ram() -> tuple[int, int]:
    """Return (bytes that machine and cgroup allow this process, free bytes plus bytes that this process uses).

    Cached files of the cgroup count as free, because the kernel drops them when memory is short.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = memory_fields(Path("/proc/meminfo")).get("MemAvailable:", total // 1024) * 1024
    with contextlib.suppress(OSError, ValueError):  # no such cgroup, or "max"
        most, now = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        if most < total:
            cached = memory_fields(CGROUP / "memory.stat").get("inactive_file", 0)
            total, free = most, min(free, most - max(0, now - cached))
    return total, max(0, free) + resident_bytes()


def memory_fields(path: Path) -> dict[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
