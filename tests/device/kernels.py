"""Element-wise operations a layer on the fake GPU, forward and backward, without and with Liger's kernels; as JSON.

Liger's are emulated here, one operation each: Triton can't write to this GPU. tests/model/test_liger.py runs them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import fake_cuda  # isort: skip  it patches torch.cuda before hone is there
import numpy as np
import torch
from torch import Tensor

from hone.config.shared import InitConfig
from hone.model import fusion, ops
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Sequence, pack

NOT_COUNTED = ("mm.", "_varlen_attn", "aten.empty", "aten.new_empty", "aten.zeros")
"""Products, attention, and what allocates or clears memory."""


def emulated(gpu: fake_cuda.FakeCuda) -> SimpleNamespace:
    def launch(name: str, compute: Any, *tensors: Tensor) -> Tensor:
        gpu.operations[f"liger.{name}"] += 1
        with torch._C._AutoDispatchBelowAutograd():
            return fake_cuda.CudaTensor(compute(*(x.cpu_data for x in tensors)))

    def rope(back: bool, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        assert q.transpose(1, 2).is_contiguous() and cos.is_contiguous() and sin.is_contiguous(), "they are copied"

        def compute(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            return ops._rotate(q[0].transpose(0, 1), cos[:, None], sin[:, None], back).transpose(0, 1)[None]

        return launch("rope", compute, q, cos, sin), k

    def swiglu(y: Tensor) -> tuple[Tensor, Tensor]:
        return y, launch("swiglu", ops._swiglu, y)

    def swiglu_backward(y: Tensor, dc: Tensor) -> Tensor:
        return launch("swiglu", ops._swiglu_grad, dc, y)

    return SimpleNamespace(
        rope=SimpleNamespace(
            rope_forward=lambda *args: rope(False, *args), rope_backward=lambda *args: rope(True, *args)
        ),
        swiglu=SimpleNamespace(
            swiglu_fused_gate_up_forward=swiglu,
            swiglu_fused_gate_up_backward=swiglu_backward,
        ),
    )


def counted(gpu: fake_cuda.FakeCuda, precision: str, qk_norm: bool) -> dict[str, Any]:
    """Count what a third layer adds to two; also how far logprobs, and gradients by relative norm, are from the CPU."""
    found = []
    for layers in (2, 3):
        size = InitConfig(layers=layers, hidden=32, intermediate=48, head_dim=8)
        config = replace(tiny_config(size, 61), qk_norm=qk_norm, initializer_range=0.2)
        rng = np.random.default_rng(0)
        sequences = [Sequence(rng.integers(3, 61, n), np.arange(n) > 0) for n in (5, 9)]
        results = []
        for device in ("cpu", "cuda:0"):
            model = random_decoder(config, 1, precision).to(device)
            model.refresh()
            batch = pack(sequences, device=device)
            gpu.operations.clear()
            logprobs = token_logprobs(model, batch, batch.loss_indices)[0]
            forward = total(gpu)
            gradients = torch.autograd.grad(logprobs.sum(), list(model.parameters()))
            results.append([getattr(x, "cpu_data", x).detach().float() for x in (logprobs, *gradients)])
        found.append((forward, total(gpu) - forward))
        (mine, *grads), (theirs, *wanted) = results[1], results[0]
        apart = [float((a - b).norm() / b.norm()) for a, b in zip(grads, wanted, strict=True)]
    (forward, backward), (forward_3, backward_3) = found
    kernels = [forward_3 - forward, backward_3 - backward]
    return {"kernels": kernels, "apart": [float((mine - theirs).abs().max()), max(apart)]}


def total(gpu: fake_cuda.FakeCuda) -> int:
    return sum(n for name, n in gpu.operations.items() if not any(part in name for part in NOT_COUNTED))


def main() -> None:
    found = {}
    with fake_cuda.FakeCuda().there() as gpu:
        for title, kernels in (("torch", None), ("liger", emulated(gpu))):
            fusion._liger = lambda kernels=kernels: kernels
            for precision in ("bf16", "bf16_linear"):
                for qk_norm in (True, False):
                    found[f"{title} {precision} {qk_norm}"] = counted(gpu, precision, qk_norm)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
