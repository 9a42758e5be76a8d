"""Count what the vocabulary head does on the fake GPU for 16,384 tokens; printed as JSON.

    python head_on_gpu.py CACHE_BYTES PRECISION

V and all limits in bytes are 128 times smaller than Qwen's 151,936 and what is given, so that a CPU can do it: in as
many chunks of as many rows. `gradients` counts how often the weight's gradient is read or written to add to it.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

import fake_cuda  # isort: skip  it patches torch.cuda before hone is there

import torch

from hone.model import head
from hone.model.shape import KNOWN
from hone.trainer import memory

SMALLER, TOKENS, HIDDEN = 128, 16_384, 16
VOCAB = 151_936 // SMALLER


class Counts:
    """Counts products, and additions to the weight's gradient."""

    def __init__(self) -> None:
        self.products = self.added = 0
        self.run = fake_cuda._run

    def __call__(self, func: Any, args: tuple, kwargs: dict) -> Any:
        name, first = str(func), args[0] if args else None
        self.products += "mm" in name
        if name in ("aten.add_.Tensor", "aten.addmm_.default") and tuple(first.shape[1:]) == (HIDDEN,):
            self.added += 2 * first.numel()
        return self.run(func, args, kwargs)


def main(cache_bytes: int, precision: str) -> dict[str, Any]:
    head.MAX_LOGITS //= SMALLER
    memory.LOGITS["cuda"] //= SMALLER
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, HIDDEN, generator=generator).to(dtype) for n in (TOKENS, VOCAB))
    targets, found, results = torch.arange(TOKENS) % VOCAB, [], []
    with fake_cuda.FakeCuda().there() as gpu:
        for cache in (cache_bytes // SMALLER, 0):
            counts = fake_cuda._run = Counts()
            given = [x.to("cuda:0").requires_grad_() for x in (hidden, weight)]
            on_gpu = targets.to("cuda:0")
            before = gpu.peak = gpu.live
            logprobs, _ = head.head_logprobs(*given, on_gpu, precision=precision, cache_bytes=cache)
            forward = counts.products
            logprobs.sum().backward()
            found.append([forward, counts.products - forward, counts.added // (VOCAB * HIDDEN), gpu.peak - before])
            results.append([x.detach().cpu().float() for x in (logprobs, given[0].grad, given[1].grad)])
            fake_cuda._run = counts.run
    shape = replace(KNOWN["qwen3-0.6b"], vocab_size=VOCAB, hidden_size=HIDDEN)
    planned = memory.head_bytes(shape, precision, "cuda", TOKENS, cache_bytes // SMALLER)
    apart = [float((a - b).norm() / b.norm()) for a, b in zip(*results, strict=True)]
    forward, backward, gradients, peak = found[0]
    return {"products": [forward, backward], "gradients": gradients, "peak": peak, "planned": planned, "apart": apart}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])), flush=True)
    os._exit(0)  # while a thread of autograd still runs, torch may abort in its own end
