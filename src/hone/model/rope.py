"""Rotary position embeddings: frequencies by scaling rule, and a table of cosines and sines by position."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from hone.errors import UserError
from hone.model.config import DecoderConfig


def inverse_frequencies(config: DecoderConfig) -> tuple[Tensor, float]:
    """Return the angle per position of each rotated pair, float32 `[head_dim / 2]`, and a factor for cos and sin.

    The rules are computed as in transformers: default (Su et al. 2021), linear (position interpolation, Chen et al.
    2023), llama3 (Llama 3.1 model card), yarn (Peng et al. 2023).
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    inverse = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling or {"rope_type": "default"}
    rule = scaling["rope_type"]
    if rule == "default":
        return inverse, 1.0
    factor = scaling.get("factor")
    if factor is None:
        raise UserError(f"RoPE of type {rule!r} needs a `factor` in the model's config.json")
    if rule == "linear":
        return inverse / factor, 1.0
    original = scaling.get("original_max_position_embeddings") or config.max_position_embeddings
    if rule == "llama3":
        return _llama3(inverse, factor, original, scaling), 1.0
    assert rule == "yarn", rule
    return _yarn(inverse, factor, original, scaling, config)


def _llama3(inverse: Tensor, factor: float, original: int, scaling: dict[str, Any]) -> Tensor:
    """Divide low frequencies by `factor`, leave high frequencies unchanged, and interpolate in between."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = original * inverse / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * inverse / factor + blend * inverse


def _yarn(
    inverse: Tensor, factor: float, original: int, scaling: dict[str, Any], config: DecoderConfig
) -> tuple[Tensor, float]:
    """Divide frequencies by `factor` below `beta_slow` turns in the original context; keep them above `beta_fast`."""
    dim = config.head_dim

    def pair_that_turns(times: float) -> float:
        return dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low = pair_that_turns(scaling.get("beta_fast") or 32)
    high = pair_that_turns(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    scale = scaling.get("attention_factor")
    if scale is None:
        mscale, mscale_all = scaling.get("mscale"), scaling.get("mscale_all_dim")
        scale = _mscale(factor, mscale) / _mscale(factor, mscale_all) if mscale and mscale_all else _mscale(factor, 1.0)
    return inverse / factor * ramp + inverse * (1 - ramp), float(scale)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


class RotaryTable(nn.Module):
    """Cosines and sines of positions, float32. On a CPU they come from a table that grows on demand, and isn't saved.

    On a GPU, each forward pass computes them. A table would make the host wait for the largest position.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self._config = config
        self._half = config.head_dim // 2
        self._inverse: dict[torch.device, tuple[Tensor, float]] = {}
        self._table = torch.empty(0, 1, 3 * self._half, device="cpu")

    def forward(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos `[N, 1, head_dim]`, each value twice, and sin `[N, 1, head_dim / 2]`."""
        if positions_N.device.type == "cpu":
            table = self._reserve(int(positions_N.max()) + 1 if positions_N.numel() else 0).index_select(0, positions_N)
        else:
            table = self._rows(positions_N)
        cos, sin = table.split([2 * self._half, self._half], dim=-1)
        return (cos.contiguous(), sin.contiguous()) if cos.is_cuda else (cos, sin)  # once for all layers

    def _reserve(self, limit: int) -> Tensor:
        """Return the table `[positions, 1, 3 / 2 head_dim]` with at least `limit` positions."""
        if limit > self._table.shape[0]:
            self._table = self._rows(torch.arange(max(256, 1 << (limit - 1).bit_length())))
        return self._table

    def _rows(self, positions_N: Tensor) -> Tensor:
        device = positions_N.device
        if device not in self._inverse:
            inverse, scale = inverse_frequencies(self._config)
            self._inverse[device] = inverse.to(device, non_blocking=True), scale
        inverse, scale = self._inverse[device]
        angles = positions_N.float()[:, None] * inverse[None, :]
        cos, sin = angles.cos() * scale, angles.sin() * scale
        return torch.cat([cos, cos, sin], dim=1).unsqueeze(1)
