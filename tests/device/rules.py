"""What the fake GPU allows, counts and refuses; printed as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from fake_cuda import FakeCuda
from torch.nn.attention.varlen import varlen_attn

from hone.inference.sampler import sample_tokens
from hone.inference.types import SamplingParams
from hone.model.device import upload

CUDA = "cuda"


def outcome(gpu: FakeCuda, call: Callable[[], Any]) -> str:
    before = gpu.waits.copy()
    try:
        call()
    except (RuntimeError, TypeError) as error:
        return type(error).__name__
    return ", ".join(sorted(kind for kind, _ in (gpu.waits - before)))


def replayed() -> list[float]:
    """Return what a graph of y = 2 x + w gives: as recorded, with new values in x and in w, and after w is replaced;
    before them, what is in y once it is captured.
    """
    x, w, out = (torch.full((2,), value, device=CUDA) for value in (1.0, 0.0, 0.0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.copy_(2 * x + w)
    found = out.tolist()[:1]

    def replay() -> None:
        graph.replay()
        found.append(out.tolist()[0])

    replay()
    x.fill_(5)
    replay()
    w.add_(1)
    replay()
    w = w + 100
    replay()
    return found


def copied() -> list[float]:
    """Return what a copy that does not block holds: at once, behind an event of before, and behind one of after it."""
    x, found = torch.full((1,), 3.0, device=CUDA), []
    early, late = torch.cuda.Event(), torch.cuda.Event()
    early.record()
    here = x.to("cpu", non_blocking=True)
    late.record()
    x.fill_(4.0)
    for wait in (lambda: None, early.synchronize, late.synchronize):
        wait()
        found.append(here.tolist()[0])
    return found


def fused_step(parameter: torch.Tensor) -> None:
    """Step twice, with AdamW's count of steps moved to the CPU in between."""
    parameter.grad = torch.ones(2, device=CUDA)
    optimizer = torch.optim.AdamW([parameter], fused=True)
    optimizer.step()
    optimizer.state[parameter]["step"] = optimizer.state[parameter]["step"].to("cpu")
    optimizer.step()


def attention_apart() -> list[float]:
    """Return how far output and gradients of `varlen_attn` are from plain attention in fp32, over two segments."""
    torch.manual_seed(0)
    plain = [torch.randn(7, heads, 8).bfloat16().float().requires_grad_() for heads in (4, 2, 2)]
    up = torch.randn(7, 4, 8)
    parts = []
    for rows in (slice(0, 3), slice(3, 7)):
        q, k, v = (x[rows].transpose(0, 1)[None] for x in plain)
        one = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        parts.append(one[0].transpose(0, 1))
    expected = torch.cat(parts)
    expected.backward(up)
    mine = [x.detach().bfloat16().to(CUDA).requires_grad_() for x in plain]
    ends = torch.tensor([0, 3, 7], dtype=torch.int32).to(CUDA)
    out = varlen_attn(*mine, ends, ends, 4, 4, window_size=(-1, 0), enable_gqa=True)
    out.backward(up.bfloat16().to(CUDA))
    pairs = [(out, expected), *((ours.grad, theirs.grad) for ours, theirs in zip(mine, plain, strict=True))]
    return [float((ours.detach().cpu().float() - theirs.detach()).abs().max()) for ours, theirs in pairs]


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
        here, there = torch.arange(4.0), torch.arange(4.0).to(CUDA)
        rows_here, rows_there = torch.tensor([0, 2]), torch.tensor([0, 2]).to(CUDA)
        parameter = torch.ones(2, device=CUDA, requires_grad=True)

        def captured(call: Callable[[], Any]) -> None:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                call()

        calls: dict[str, Callable[[], Any]] = {
            "mixed": lambda: here + there,
            "a number": lambda: there + torch.tensor(1.0),
            "fused": lambda: fused_step(parameter),
            "index here": lambda: there[rows_here],
            "index there": lambda: there[rows_there],
            "of the other": lambda: here[rows_there],
            "numpy": lambda: there.numpy(),
            "item": lambda: there[0].item(),
            "if": lambda: bool(there[0] > 1),
            "tolist": lambda: there.tolist(),
            "mask": lambda: there[there > 1],
            "nonzero": lambda: there.nonzero(),
            "down": lambda: there.cpu(),
            "up": lambda: here.to(CUDA),
            "upload": lambda: upload(here.numpy(), CUDA),
            "event": lambda: [event := torch.cuda.Event(), event.record(), event.synchronize()],
            "pinned cumsum": lambda: pinned(lambda: there.cumsum(0)),
            "captured": lambda: captured(lambda: there + 1),
            "captured item": lambda: captured(lambda: there[0].item()),
            "captured up": lambda: captured(lambda: here.to(CUDA)),
        }
        found = {name: outcome(gpu, call) for name, call in calls.items()}
        parameter = torch.ones(2, device=CUDA, requires_grad=True)
        (parameter * there[:2]).sum().backward()
        found |= {"gradient": parameter.grad.tolist(), "replayed": replayed(), "attention": attention_apart()}
        found |= {"copied": copied(), "draws": draws_apart(), "sorts": sorts(gpu)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
