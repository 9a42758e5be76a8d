"""What the machine could do at most: matrix products and memory reads per second, measured, and what a model needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder


def gemm_gflops(dtype: torch.dtype, device: str = "cpu", size: int = 1024) -> float:
    """GFLOP/s of [size, size] x [size, size], which is bound by arithmetic, on the threads that torch has now."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _fastest(lambda: a @ b, device) / 1e9


def read_gigabytes(device: str = "cpu", mebibytes: int = 512) -> float:
    """GB/s of reading memory far larger than the caches."""
    x = torch.ones(mebibytes * 2**18, device=device)
    return 4 * x.numel() / _fastest(x.amax, device) / 1e9


def _fastest(work: Callable[[], Any], device: str, repeats: int = 20, seconds: float = 1.0) -> float:
    """Seconds of the fastest of so many repeats, of fewer where they take long: bf16 products on a CPU without them."""
    times: list[float] = []
    while len(times) < repeats + 2 and (len(times) < 2 or sum(times) < seconds):
        start = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def sampling_limits(
    config: DecoderConfig,
    precision: str,
    prompts: int,
    prompt_tokens: int,
    new_tokens: int,
    gflops: dict[str, float],
    gigabytes: float,
) -> dict[str, float]:
    """Tokens/s that the measured rates leave possible on the same threads, in the same precision.

    Arithmetic: 2 FLOP per weight and token (the head only where a token is sampled), 4 per query channel and token
    attended to. Bandwidth: each decode step reads all weights once, and the keys and values of every sequence; what
    stays in a cache from step to step, as a small model does, can beat it. `gflops` by "float32" and "bfloat16".
    """
    c = config
    with torch.device("meta"):
        layers = sum(p.numel() for p in Decoder(config).layers.parameters())
    head = c.vocab_size * c.hidden_size
    sampled, fed = prompts * new_tokens, prompts * (prompt_tokens + new_tokens - 1)
    attended = prompts * (prompt_tokens + new_tokens) ** 2 / 2
    low, high = gflops["bfloat16"], gflops["float32"]
    seconds = (
        2 * layers * fed / (high if precision == "fp32" else low)
        + 2 * head * sampled / (low if precision == "bf16" else high)
        + 4 * c.q_size * c.num_layers * attended / (low if precision == "bf16" else high)
    ) / 1e9
    weight_bytes = layers * (4 if precision == "fp32" else 2) + head * (2 if precision == "bf16" else 4)
    per_token = 2 * c.num_layers * c.num_kv_heads * c.head_dim * (2 if precision == "bf16" else 4)
    step_bytes = weight_bytes + prompts * (prompt_tokens + new_tokens / 2) * per_token
    return {"arithmetic": sampled / seconds, "bandwidth": prompts / (step_bytes / gigabytes / 1e9)}
