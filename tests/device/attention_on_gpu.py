"""Attention on the fake GPU and on the CPU, compared; prints as JSON how far they are apart, and what was called."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import fake_cuda  # isort: skip  it patches torch.cuda before hone is there
import numpy as np
import torch
from torch import Tensor

from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.inference.engine import Engine
from hone.inference.prefill import ContinuedAttention, PrefillAttention
from hone.inference.types import SamplingParams
from hone.model import attention
from hone.model.device import has_bf16
from hone.model.files import TINY
from hone.model.hf import load_model
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Sequence, pack

BATCHES = {
    "packed": ([6, 5, 1, 7], None),
    "equal": ([5, 5, 5], None),
    "shared": ([5, 2, 9, 1, 4, 1, 6], [-1, 0, 0, 0, -1, -1, 5]),
}
SIZE = InitConfig(layers=3, hidden=32, intermediate=48, head_dim=8)
CONFIG = replace(tiny_config(SIZE, 61), initializer_range=0.2, eos_token_ids=(2,), pad_token_id=None)
CALLS: list[tuple[str, int, int]] = []
"""(kernel, query heads, key/value heads) of each call of attention on the fake GPU."""
QUERIES: list[int] = []
"""Queries of each call, of all heads together."""
BACKENDS: set[tuple[bool, ...]] = set()
"""Kernels that SDPA may take on the fake GPU: flash, memory-efficient, plain, cuDNN's."""


def watch() -> None:
    kernel, sdpa = (
        fake_cuda._EMULATED["torch_attn._varlen_attn.default"],
        torch.nn.functional.scaled_dot_product_attention,
    )

    def watched(q: Tensor, k: Tensor, *rest: Any) -> Any:
        CALLS.append(("varlen", q.shape[1], k.shape[1]))
        QUERIES.append(q.shape[0])
        return kernel(q, k, *rest)

    def watched_sdpa(q: Tensor, k: Tensor, *rest: Any, **options: Any) -> Tensor:
        if q.is_cuda:
            CALLS.append(("sdpa", q.shape[1], k.shape[1]))
            QUERIES.append(q.shape[0] * q.shape[2])
            may = torch.backends.cuda
            enabled = may.flash_sdp_enabled, may.mem_efficient_sdp_enabled, may.math_sdp_enabled, may.cudnn_sdp_enabled
            BACKENDS.add(tuple(one() for one in enabled))
        return sdpa(q, k, *rest, **options)

    fake_cuda._EMULATED["torch_attn._varlen_attn.default"] = watched
    torch.nn.functional.scaled_dot_product_attention = watched_sdpa


def here(x: Tensor) -> Tensor:
    return getattr(x, "cpu_data", x).detach().float()


def apart(results: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [float((here(a) - here(b)).abs().max()) for a, b in zip(results, expected, strict=True)]


def relative(results: list[Tensor], expected: list[Tensor]) -> list[float]:
    return [float((here(a) - here(b)).norm() / here(b).norm()) for a, b in zip(results, expected, strict=True)]


def packed(device: str, batch: str, dtype: torch.dtype, kv_heads: int) -> list[Tensor]:
    """Attend; returns the values and the gradients of q, k and v."""
    lengths, parents = BATCHES[batch]
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(sum(lengths), heads, 8, generator=generator).to(dtype) for heads in (4, kv_heads, kv_heads, 4)]
    *inputs, upstream = [x.to(device) for x in made]
    inputs = [x.requires_grad_() for x in inputs]
    out = attention.PackedAttention(lengths, parents)(0, *inputs)
    assert out.dtype == dtype
    return [out, *torch.autograd.grad(out, inputs, upstream)]


def continued(device: str, dtype: torch.dtype, kv_heads: int) -> list[Tensor]:
    """Attend from where known keys and values end, two prompts at once."""
    generator = torch.Generator().manual_seed(1)

    def drawn(tokens: int, heads: int) -> Tensor:
        return torch.randn(tokens, heads, 8, generator=generator).to(dtype).to(device)

    pasts = [[(drawn(5, kv_heads), drawn(5, kv_heads))], []]
    return [ContinuedAttention(pasts, [3, 4])(0, drawn(7, 4), drawn(7, kv_heads), drawn(7, kv_heads))]


def trained(device: str, precision: str, share: bool, checkpointing: str = "none") -> list[Tensor]:
    """Compute the logprobs of a small model, and the gradient of their sum in each parameter."""
    model = random_decoder(CONFIG, 1, precision).to(device)
    model.refresh()
    if device != "cpu":
        model.set_checkpointing(checkpointing)
    rng, prompt = np.random.default_rng(0), np.arange(3, 9)
    sequences = []
    for length in (4, 7, 2):
        ids = np.concatenate([prompt, rng.integers(3, 61, length)])
        sequences.append(Sequence(ids, np.arange(len(ids)) >= len(prompt), sample=length))
    batch = pack(sequences, device=device, share_prompts=share)
    logprobs = token_logprobs(model, batch, batch.loss_indices)[0]
    return [logprobs, *torch.autograd.grad(logprobs.sum(), list(model.parameters()))]


def sampled(device: str, options: dict[str, Any]) -> list[Tensor]:
    model = random_decoder(CONFIG, 1, "bf16_linear").to(device)
    params = SamplingParams(max_tokens=40, n=2, ignore_eos=True)
    (completions,) = Engine(model, **options).generate([range(3, 9)], params)
    return [torch.tensor([c.token_ids for c in completions]), torch.tensor([c.logprobs for c in completions])]


def on_an_old_gpu(found: dict[str, Any], compare: Any) -> None:
    """Compare on a card without bf16 kernels of attention, such as a T4."""
    torch.cuda.get_device_capability = lambda *args: (7, 5)
    has_bf16.cache_clear()
    for precision in ("fp32", "bf16_linear"):
        compare(f"old model {precision}", trained, precision, True)
    for options in ({}, {"cuda_graphs": True}, {"batch_invariant": True}):
        compare(f"old samples {list(options)}", sampled, options)
    try:
        load_model(TINY, device="cuda:0", precision="bf16")
    except UserError as error:
        found["old refusal"] = str(error)


def main(enable_gqa: bool) -> dict[str, Any]:
    watch()
    found: dict[str, Any] = {}

    def compare(name: str, function: Any, *args: Any) -> None:
        expected = function("cpu", *args)
        CALLS.clear()
        QUERIES.clear()
        results = function("cuda:0", *args)
        distances = apart(results, expected), relative(results, expected)
        found[name] = {"apart": distances[0], "relative": distances[1], "calls": CALLS[:], "queries": QUERIES[:]}

    with fake_cuda.FakeCuda(enable_gqa).there():
        for dtype in (torch.float32, torch.bfloat16):
            for kv_heads in (1, 2, 4):
                for batch in BATCHES:
                    compare(f"{batch} {dtype} {kv_heads}", packed, batch, dtype, kv_heads)
                compare(f"continued {dtype} {kv_heads}", continued, dtype, kv_heads)
        for precision in ("fp32", "bf16_linear", "bf16"):
            for share in (False, True):
                compare(f"model {precision} {share}", trained, precision, share)
            for mode in ("layer", "selective"):
                compare(f"model {precision} {mode}", trained, precision, True, mode)
            model, attend = random_decoder(CONFIG, 1, precision).to("cuda:0"), PrefillAttention([4])
            model.refresh()
            with torch.no_grad():
                model.hidden(torch.arange(4, device="cuda:0"), torch.arange(4, device="cuda:0"), attend)
            found[f"kept {precision}"] = [str(x.dtype) for pair in attend.layers for x in pair]
        compare("graphs", sampled, {"cuda_graphs": True})
        on_an_old_gpu(found, compare)
    return found | {"backends": sorted(BACKENDS)}


if __name__ == "__main__":
    print(json.dumps(main(enable_gqa=sys.argv[1] == "gqa")))
