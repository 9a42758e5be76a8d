"""Memory, FLOP/s, bandwidth and price of well-known GPUs and of this machine.

FLOP/s are vendors' figures for dense products. The fp32 figures are without TF32, which hone does not use. Prices are
a GPU cloud's prices per hour, rounded.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Literal

from hone.errors import UserError
from hone.hardware import MARGIN, ram, share_of_cores

PRICES_OF = "mid 2025"


@dataclass(frozen=True)
class Device:
    """An accelerator, or a CPU with all its `cores`.

    `memory` and `free` are in bytes; `free` is None for a device of the table. `flops` are dense FLOP/s by dtype
    ("bf16", "fp32"). `bandwidth` is the bandwidth of the memory, in bytes/s.
    """

    name: str
    kind: Literal["cuda", "cpu"]
    memory: int
    flops: dict[str, float]
    bandwidth: float
    usd_per_hour: float | None = None
    free: int | None = None
    cores: int = 1

    @property
    def available(self) -> int:
        """Bytes that are free now, or the memory of a device of the table."""
        return self.memory if self.free is None else self.free

    @property
    def room(self) -> int:
        """Bytes that a run may use. A part of a GPU's memory stays free."""
        return int((1 - MARGIN) * self.available) if self.kind == "cuda" else self.available


def _gpu(name: str, gb: float, bf16: float, fp32: float, tb_s: float, usd: float) -> Device:
    return Device(name, "cuda", int(gb * 10**9), {"bf16": bf16 * 1e12, "fp32": fp32 * 1e12}, tb_s * 1e12, usd)


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
"""Devices by their name for `--on`. Memory is the total that the driver shows."""
SIZES = {"16gb": "t4", "24gb": "rtx4090", "32gb": "rtx5090", "40gb": "a100-40", "48gb": "l40s", "80gb": "h100"}
SIZES |= {"141gb": "h200", "180gb": "b200"}


def device_named(name: str) -> Device:
    """Return a device of the table, by its name or its memory (`24gb`). UserError suggests the nearest name."""
    key = name.lower().replace(" ", "").replace("-80gb", "")
    if key == "cpu":
        return this_device("cpu")
    for candidate in (key, key.replace("-", ""), SIZES.get(key), SIZES.get(f"{key}gb")):
        if candidate in DEVICES:
            return DEVICES[candidate]
    near = get_close_matches(key, DEVICES, n=1, cutoff=0.4) if key and not key.endswith("gb") else []
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(f"{name!r} is not a known device: {hint}known are {', '.join([*DEVICES, *SIZES])} and cpu")


def this_device(name: str = "auto", measured: bool = True) -> Device:
    """Return this machine's device for a run with `model.device = name`.

    A CPU's speed is measured only if `measured`. GPU memory that this process has reserved counts as free.
    """
    import torch

    if name == "cpu" or not torch.cuda.is_available():
        cores = share_of_cores(1)
        total, free = ram()
        flops, bandwidth = _measured_speed(cores) if measured else ({}, 0.0)
        text = f"CPU, {cores} core{'s' if cores > 1 else ''}"
        return Device(text, "cpu", total, flops, bandwidth, None, free, cores)
    index = int(name.partition(":")[2] or 0)
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    free += torch.cuda.memory_reserved(index)
    words = properties.name.lower().replace(" ", "")  # such as nvidiah100pcie
    # A guess, if it is not in the table: one multiprocessor of recent cards does about 2 TFLOP/s in bf16.
    count = properties.multi_processor_count
    known = Device("", "cuda", total, {"bf16": 2e12 * count, "fp32": 0.25e12 * count}, 1e12)
    if alike := [key for key in DEVICES if key.split("-")[0] in words]:
        # The longest name (l40s, not l4), of the same bus, of the nearest memory.
        same_bus = {key: ("pcie" in key) == ("pcie" in words) for key in alike}
        away = {key: abs(DEVICES[key].memory - total) for key in alike}
        known = DEVICES[max(alike, key=lambda key: (len(key.split("-")[0]), same_bus[key], -away[key]))]
    return replace(known, name=properties.name, memory=total, free=free)


@cache
def _measured_speed(threads: int) -> tuple[dict[str, float], float]:
    import torch

    def best(action: Callable[[], object]) -> float:
        action()
        return min(timeit.repeat(action, number=1, repeat=5))

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        n, flops = 1024, {}
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
            a, b = (torch.ones(n, n, dtype=dtype) for _ in range(2))
            flops[name] = 2 * n**3 / best(lambda a=a, b=b: torch.mm(a, b))
        source = torch.ones(2**23)  # 32 MiB: beyond most caches
        target = torch.empty_like(source)
        return flops, 2 * source.nbytes / best(lambda: target.copy_(source))
    finally:
        torch.set_num_threads(before)


def size(count: float) -> str:
    """Return bytes in a fitting unit, such as `512 MiB` or `1.3 GiB`."""
    gib = count / 2**30
    return f"{gib:,.0f} GiB" if gib >= 100 else f"{gib:.1f} GiB" if abs(gib) >= 1 else f"{count / 2**20:.0f} MiB"
