"""Count on the fake GPU what a step launches, moves and holds; print it as JSON.

A layer's share is the difference of models of four layers and of two. The kernels are as many at any size.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fake_cuda import FakeCuda  # isort: skip  it patches torch.cuda before hone is there
import numpy as np

from hone.algorithms.losses.objective import sft_objective
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.shared import InitConfig, LoraConfig, OptimConfig, SchedulerConfig
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams
from hone.model.lora import start_adapter
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.memory import training_bytes
from hone.trainer.packing import Batch, Sequence
from hone.trainer.step import Trainer

INIT = InitConfig(hidden=256, intermediate=768, heads=4, kv_heads=2, head_dim=64)
SHAPE = replace(tiny_config(INIT, 4096), qk_norm=True)
PROMPT, COMPLETION, GROUP = 64, 48, 8
MICRO_BATCH = 2 * (PROMPT + GROUP * COMPLETION)
STAY = ("weights", "bf16 casts", "optimiser")
"""Parts of a plan that a step finds there."""


def counted(gpu: FakeCuda, call: Callable[[], Any]) -> dict[str, int]:
    """Return kernels, bytes, and the peak of live bytes above what is there before and after."""
    gc.collect()
    kernels, moved, before = gpu.operations.total(), gpu.bytes, gpu.live
    gpu.peak = before
    call()
    return {
        "kernels": gpu.operations.total() - kernels,
        "bytes": gpu.bytes - moved,
        "peak": gpu.peak - before,
        "left": gpu.live - before,
    }


def decode(gpu: FakeCuda, layers: int, precision: str, lora: LoraConfig | None = None) -> dict[str, int]:
    """One step of eight sequences, without a graph: what one would launch."""
    model = random_decoder(replace(SHAPE, num_layers=layers), 0, precision, lora)
    if lora:
        start_adapter(model, 0)
    model.to("cuda")
    engine = Engine(model, cuda_graphs=False)
    rng = np.random.default_rng(0)
    params = SamplingParams(ignore_eos=True)
    for number in range(GROUP):
        engine.add(Job(tuple(rng.integers(0, 4096, PROMPT).tolist()), number, COMPLETION, params))
    for _ in range(4):
        engine.step()
    return counted(gpu, engine.step)


def train(gpu: FakeCuda, layers: int, precision: str, checkpointing: str = "none") -> dict[str, int]:
    """One step of four prompts with eight completions each, after one that made the optimiser's state; beside it, what
    the plan says that it takes at its peak.
    """
    shape = replace(SHAPE, num_layers=layers)
    model = random_decoder(shape, 0, precision).to("cuda")
    optim = OptimConfig(lr=1e-6)
    trainer = Trainer(model, optim, SchedulerConfig(), 10, sft_objective, checkpointing=checkpointing)
    rng = np.random.default_rng(0)
    mask = np.arange(PROMPT + COMPLETION) >= PROMPT
    rows = []
    for group in range(4):
        prompt = rng.integers(0, 4096, PROMPT)
        rows += [
            Sequence(np.concatenate([prompt, rng.integers(0, 4096, COMPLETION)]), mask, group=group, sample=i)
            for i in range(GROUP)
        ]
    batches = trainer.deal(Batch(rows), MICRO_BATCH, share_prompts=True)
    assert len(batches) == 2, "the second one's peak has the gradients of the first"
    trainer.step(batches)
    flags = ["--model.name", "hone/tiny", "--orchestrator.batch-size", str(4 * GROUP), "--precision", precision]
    flags += ["--orchestrator.rollouts-per-example", str(GROUP), "--seq-len", str(PROMPT + COMPLETION)]
    flags += ["--orchestrator.env.id", "reverse-text", "--trainer.checkpointing", checkpointing]
    flags += ["--trainer.micro-batch-tokens", str(MICRO_BATCH)]
    parts = training_bytes(parse(RLConfig, flags, "rl"), shape, "cuda", PROMPT, COMPLETION)
    planned = {"planned": sum(size for name, size in parts.items() if name not in STAY)}
    return counted(gpu, lambda: trainer.step(batches)) | planned


def of_layers(two: dict[str, int], four: dict[str, int]) -> dict[str, Any]:
    """Return the counts of the larger model, and each layer's share."""
    return {"whole": four, "layer": {key: (four[key] - two[key]) / 2 for key in two}}


def main() -> None:
    found: dict[str, Any] = {}
    with FakeCuda().there() as gpu:
        for name, lora in (("lora", LoraConfig(rank=16)), ("lora on 4 bits", LoraConfig(rank=16, base="4bit"))):
            found[f"decode bf16, {name}"] = of_layers(*(decode(gpu, layers, "bf16", lora) for layers in (2, 4)))
        for precision in ("bf16_linear", "bf16"):
            for name, work in (("decode", decode), ("train", train)):
                found[f"{name} {precision}"] = of_layers(*(work(gpu, layers, precision) for layers in (2, 4)))
            for checkpointing in ("selective", "layer"):
                found[f"train {precision}, {checkpointing}"] = {"whole": train(gpu, 4, precision, checkpointing)}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
