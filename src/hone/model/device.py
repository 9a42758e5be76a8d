"""Copies arrays to a device, and tells which features a GPU has."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch


def upload(values: np.ndarray, device: torch.device | str) -> torch.Tensor:
    """Copy an array to `device`. The host does not wait for the GPU to finish earlier work."""
    tensor = torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@cache
def has_bf16(device: torch.device) -> bool:
    """Return True for Ampere and newer GPUs. Older GPUs, such as a T4, lack the varlen attention kernel."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
