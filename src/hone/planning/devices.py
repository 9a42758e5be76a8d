"""What machines can do: memory, arithmetic, bandwidth and price, of the well-known GPUs and of this machine.

Figures are the vendors' for dense arithmetic, without sparsity. fp32 is that of the ordinary units, for hone leaves
TF32 off. Prices are what renting one by the hour costs at a cloud for GPUs, rounded; they change, so say your own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hone.errors import UserError

if TYPE_CHECKING:
    import torch

GB = 10**9
PRICES_OF = "mid 2025"
"""When the prices were looked up."""


@dataclass(frozen=True)
class Device:
    """A machine's accelerator, or its CPU. `memory` bytes; `flops` dense FLOP/s by dtype ("bf16", "fp32"); `bandwidth`
    bytes/s of its memory; `usd_per_hour` None where nobody rents it.
    """

    name: str
    kind: Literal["cuda", "cpu"]
    memory: int
    flops: dict[str, float]
    bandwidth: float
    usd_per_hour: float | None = None
    free: int | None = None
    """Bytes that nobody uses now; None for a device that is only named."""
    cores: int = 1
    """Of a CPU, whose speed is that of all of them together."""


def _gpu(name: str, gb: float, bf16: float, fp32: float, tb_s: float, usd: float) -> Device:
    return Device(name, "cuda", int(gb * GB), {"bf16": bf16 * 1e12, "fp32": fp32 * 1e12}, tb_s * 1e12, usd)


DEVICES = {
    "t4": _gpu("T4 16 GB", 15.8, 65, 8.1, 0.32, 0.35),
    "l4": _gpu("L4 24 GB", 24.2, 121, 30.3, 0.30, 0.50),
    "a10": _gpu("A10 24 GB", 24.2, 125, 31.2, 0.60, 0.75),
    "rtx3090": _gpu("RTX 3090 24 GB", 25.3, 71, 35.6, 0.936, 0.25),
    "rtx4090": _gpu("RTX 4090 24 GB", 25.3, 165, 82.6, 1.008, 0.40),
    "rtx5090": _gpu("RTX 5090 32 GB", 34.2, 210, 104.8, 1.792, 0.70),
    "a6000": _gpu("RTX A6000 48 GB", 51.0, 155, 38.7, 0.768, 0.50),
    "l40s": _gpu("L40S 48 GB", 47.7, 362, 91.6, 0.864, 0.90),
    "a100-40": _gpu("A100 40 GB", 42.3, 312, 19.5, 1.555, 1.30),
    "a100": _gpu("A100 80 GB", 85.1, 312, 19.5, 2.039, 1.60),
    "h100": _gpu("H100 SXM 80 GB", 85.0, 989, 67, 3.35, 2.75),
    "h100-pcie": _gpu("H100 PCIe 80 GB", 85.0, 756, 51, 2.0, 2.25),
    "h200": _gpu("H200 141 GB", 150.1, 989, 67, 4.8, 3.50),
    "b200": _gpu("B200 180 GB", 191.0, 2250, 75, 8.0, 5.00),
}
"""By the name that `--on` takes. Memory is what the driver shows as total."""

SIZES = {"16gb": "t4", "24gb": "rtx4090", "32gb": "rtx5090", "40gb": "a100-40", "48gb": "l40s", "80gb": "h100"}
SIZES |= {"141gb": "h200", "180gb": "b200"}
"""A card of that memory, for who asks by it."""


def device_named(name: str) -> Device:
    """A device of the table, by its name or its memory (`24gb`). UserError names the nearest."""
    key = name.lower().replace(" ", "").replace("_", "-").removeprefix("nvidia-")
    if key in ("cpu", "here", "this"):
        return this_device(key if key == "cpu" else "auto")
    for candidate in (key, key.replace("-", ""), key.removesuffix("-80gb"), key.removesuffix("gb")):
        candidate = SIZES.get(candidate) or SIZES.get(candidate + "gb") or candidate
        if candidate in DEVICES:
            return DEVICES[candidate]
    near = get_close_matches(key, [*DEVICES, *SIZES], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "there is none like it."
    raise UserError(f"no device is known as {name!r}: {hint} Known are {', '.join(DEVICES)}, and cpu")


def this_device(name: str = "auto", measured: bool = True) -> Device:
    """The device that a run with `model.device = name` would take on this machine.

    What this process has of its memory counts as free. Unless `measured`, a CPU's speed is left out.
    """
    import torch

    if name != "cpu" and torch.cuda.is_available():
        return _this_gpu(0 if ":" not in name else int(name.split(":")[1]))
    return this_cpu(measured)


def _this_gpu(index: int) -> Device:
    import torch

    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    free += torch.cuda.memory_reserved(index)
    known = _of_the_table(properties.name, total)
    if known is None:
        # One multiprocessor of recent cards does about 2 TFLOP/s in bf16; a plan says that this is a guess.
        count = properties.multi_processor_count
        flops = {"bf16": 2e12 * count, "fp32": 0.25e12 * count}
        return Device(properties.name, "cuda", total, flops, 1e12, None, free)
    return Device(properties.name, "cuda", total, known.flops, known.bandwidth, known.usd_per_hour, free)


def _of_the_table(full_name: str, memory: int) -> Device | None:
    """The table's entry for a name as the driver tells it, such as `NVIDIA H100 80GB HBM3`."""
    words = full_name.lower().replace(" ", "")
    alike = [(key, device) for key, device in DEVICES.items() if key.split("-")[0] in words]
    if not alike:
        return None
    longest = max(len(key.split("-")[0]) for key, _ in alike)
    best = [(key, d) for key, d in alike if len(key.split("-")[0]) == longest]
    return min(best, key=lambda pair: (("pcie" in pair[0]) != ("pcie" in words), abs(pair[1].memory - memory)))[1]


def this_cpu(measured: bool = True) -> Device:
    """This machine's CPU: its memory and, measured for half a second, its speed in products and copies."""
    total, free = ram()
    flops, bandwidth = _measured(_cores()) if measured else ({}, 0.0)
    return Device(
        f"CPU, {_cores()} core{'s' if _cores() > 1 else ''}", "cpu", total, flops, bandwidth, None, free, _cores()
    )


def _cores() -> int:
    from hone.orchestrator.placement import share_of_cores

    return share_of_cores(1)


@cache
def _measured(threads: int) -> tuple[dict[str, float], float]:
    """(FLOP/s by dtype, bytes/s of a copy) with so many threads, from products of about 0.1 s each."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        flops = {"bf16": _gemm(torch.bfloat16), "fp32": _gemm(torch.float32)}
        source = torch.ones(2**23)  # 32 MiB: beyond most caches
        target = torch.empty_like(source)
        seconds = _best(lambda: target.copy_(source), 0.05)
        return flops, 2 * source.nbytes / seconds
    finally:
        torch.set_num_threads(before)


def _gemm(dtype: torch.dtype) -> float:
    import torch

    n = 1024
    a, b = (torch.ones(n, n, dtype=dtype) for _ in range(2))
    return 2 * n**3 / _best(lambda: torch.mm(a, b), 0.1)


def _best(action: Callable[[], object], seconds: float) -> float:
    """The shortest time of a call, after one that doesn't count, among those that fit into `seconds`."""
    action()
    best, end = float("inf"), time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        action()
        best = min(best, time.perf_counter() - begun)
    return best


def ram() -> tuple[int, int]:
    """(bytes of memory that this process may take, bytes that are free now, its own included): the machine's, or its
    cgroup's limit.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = _available() or total
    for limit, used in _CGROUPS:
        most, now = _number(limit), _number(used)
        if most is not None and most < total:
            total, free = most, min(free, most - max(0, (now or 0) - _cached(used.with_name("memory.stat"))))
    return total, max(0, free) + _own()


_CGROUPS = [
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
]


def _cached(path: Path) -> int:
    """Bytes of files that the cgroup's memory holds, and that the kernel gives up when they are wanted."""
    try:
        counts = dict(line.split() for line in path.read_text().splitlines())
        return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0


def _own() -> int:
    """Bytes that this process has."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such cgroup, or "max"
        return None


def _available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None
