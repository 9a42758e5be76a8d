"""Draw tokens on the fake GPU; print as JSON how many are not the CPU's, and what was sorted for them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from fake_cuda import FakeCuda

from hone.inference.sampler import sample_tokens
from hone.inference.types import SamplingParams

CUDA = "cuda"


def pinned(call: Callable[[], Any]) -> Any:
    """Call with deterministic kernels only."""
    torch.use_deterministic_algorithms(True)
    try:
        return call()
    finally:
        torch.use_deterministic_algorithms(False)


def draws_apart() -> list[int]:
    """Return how many of 64 tokens differ from the CPU's, drawn with deterministic kernels: small and large
    vocabularies, and a cut one.
    """
    found = []
    for size, params in ((50, SamplingParams()), (3000, SamplingParams()), (300, SamplingParams(top_p=0.8, top_k=40))):
        generator = torch.Generator().manual_seed(size)
        logits = 3 * torch.randn(64, size, generator=generator)
        uniforms = torch.rand(64, generator=generator, dtype=torch.float64)
        mine, *_ = pinned(lambda: sample_tokens(logits.to(CUDA), uniforms.to(CUDA), params))  # noqa: B023
        found.append(int((mine.cpu() != sample_tokens(logits, uniforms, params)[0]).sum()))
    return found


def sorts(gpu: FakeCuda) -> list[list[int]]:
    """Return how often the vocabulary is sorted, and the likeliest are looked for: plainly, by top_k, top_p, both."""
    found, logits = [], torch.randn(4, 3000).to(CUDA)
    for cuts in ({}, {"top_k": 40}, {"top_p": 0.8}, {"top_k": 40, "top_p": 0.8}):
        before = gpu.operations.copy()
        sample_tokens(logits, torch.rand(4, dtype=torch.float64).to(CUDA), SamplingParams(**cuts))
        new = gpu.operations - before
        found.append([sum(n for name, n in new.items() if what in name) for what in ("aten.sort", "aten.topk")])
    return found


def main() -> None:
    with FakeCuda().there() as gpu:
        json.dump({"draws": draws_apart(), "sorts": sorts(gpu)}, sys.stdout)


if __name__ == "__main__":
    main()
