"""Data on its way between the host and a GPU."""

from __future__ import annotations

import numpy as np
import torch


def upload(values: np.ndarray, device: torch.device | str) -> torch.Tensor:
    """Copy an array to `device`; the host does not wait until a GPU has done what it was told before."""
    tensor = torch.from_numpy(values)
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
