"""The GPUs, cores and memory that a process may use here, and limits of a CPU's kernels. Standard library only."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

CORES = "HONE_CORES"
"""Variable that tells a process how many of the machine's cores are for it."""

SHARES_GPU = "HONE_SHARES_GPU"
"""Variable: 1 tells a trainer that the run's server uses its first GPU, too."""

MIN_FP32_SIZE = 2**18
"""Size of the smallest fp32 weight to pack: for smaller ones the plain product is as fast on one thread."""
HEAD_CACHE_BYTES = 512 * 2**20
"""Default of `head_cache_bytes` on a CPU, and the least on a GPU."""
CACHE_SHARE = 16
"""Bytes of that cache for each logit that a GPU holds at once (at least a CPU's cache): each chunk of logits reads and
writes the whole gradient of the head's weight."""
MARGIN = 0.05
"""Share of a device's memory that stays free: blocks of many sizes don't fill it, and plans are not exact."""
MAX_PACKED_BYTES = 8 * 2**30
"""Larger models' weights are not packed: packing doubles their memory."""


def visible_gpus(env: Mapping[str, str] = os.environ) -> list[str]:
    """Return the GPUs that this process may use: CUDA_VISIBLE_DEVICES, else all that the driver lists."""
    named = env.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        listed = [name.strip() for name in named.split(",")]
        # As CUDA reads it: what follows an entry that is none does not count.
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
    """Round `rows` up so that few different numbers occur: by at most 1/8, to a multiple of 16.

    oneDNN compiles a kernel for every shape that it meets, and keeps a thousand of them. With a new number of tokens
    each step that doubles the time of a product and costs 20 MB a step.
    """
    granule = max(16, (1 << (rows - 1).bit_length()) // 16)
    return -(-rows // granule) * granule


def share_of_cores(processes: int) -> int:
    """Divide the cores that this process may use (on macOS: all) among the processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, processes))


CGROUP = Path("/sys/fs/cgroup")


def ram() -> tuple[int, int]:
    """Return the bytes of memory that machine and cgroup allow this process, and the free bytes, its own included.

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
    """Read a file of lines with a name and a number; empty if there is none."""
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
