"""Sample with every variant of the engine on the fake GPU and on the CPU; print what came of it as JSON.

python engines.py PRECISION
"""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fake_cuda import FakeCuda  # first: it patches torch.cuda, and hone looks there

sys.path.append(str(Path(__file__).parents[1] / "inference"))
from many_jobs import CONFIG, jobs

from hone.config.shared import LoraConfig
from hone.inference import graphs
from hone.inference.engine import Engine
from hone.inference.memory import kv_bytes_per_token
from hone.inference.types import Job, SamplingParams, Token
from hone.model import attention
from hone.model.decoder import Decoder
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Sequence, pack

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "graphs": {"cuda_graphs": True},
    "varlen": {"cuda_graphs": True},
    "adapter": {"cuda_graphs": True},
    "invariant": {"batch_invariant": True},
    "prefixes": {"prefix_bytes": 2**20, "prefill_tokens": 64},
    "small cache": {"kv_bytes": 300 * kv_bytes_per_token(CONFIG, "fp32", "cpu")},
}
WAYS = [SamplingParams(ignore_eos=True), SamplingParams(temperature=0.8, top_k=40, top_logprobs=2, ignore_eos=True)]
JOBS = [replace(job, params=WAYS[i % 2], max_tokens=min(job.max_tokens, 24)) for i, job in enumerate(jobs(9, seed=1))]


def peaked(precision: str, lora: LoraConfig | None = None) -> Decoder:
    """Return a random model whose layers matter: as much as those of a trained one, for what comes next."""
    model = Decoder(CONFIG, precision, lora=lora)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            scale = 0.2 if parameter is model.head_weight else parameter.shape[-1] ** -0.5
            parameter.copy_(1 + 0.3 * values if parameter.dim() == 1 else values * scale)
    model.refresh()
    return model


def updated(model: Decoder, times: int) -> Decoder:
    with torch.no_grad():
        for _ in range(times):
            for parameter in model.parameters():
                parameter.mul_(0.97)
            model.refresh()
    return model


def sampled(engine: Engine, gpu: FakeCuda | None = None) -> tuple[dict[int, list[Token]], list[int]]:
    """Return the tokens of each job by its key, two thirds of the jobs coming later, and the waits of each step."""
    keys = {engine.add(job): job.key for job in JOBS[::3]}
    got: dict[int, list[Token]] = {job.key: [] for job in JOBS}
    waits, later = [], [job for i, job in enumerate(JOBS) if i % 3]
    while engine.busy or later:
        if len(waits) % 3 == 2 and later:
            job = later.pop(0)
            keys[engine.add(job)] = job.key
        before = gpu.waits.total() if gpu else 0
        for token in engine.step():
            got[keys[token.ticket]].append(token)
        waits.append(gpu.waits.total() - before if gpu else 0)
    return got, waits


def gaps(model: Decoder, got: dict[int, list[Token]]) -> list[float]:
    """Return |Δ| of each token's logprob to the trainer's, in nats, for each way to sample."""
    found: list[float] = []
    for way in WAYS:
        mine = [job for job in JOBS if job.params is way]
        batch = pack([_sequence(job, got[job.key]) for job in mine], share_prompts=True, device=model.device)
        logprobs = token_logprobs(model, batch, batch.loss_indices, way.temperature)[0].detach().cpu()
        of_engine = np.array([token.logprob for job in mine for token in got[job.key]])
        found += np.abs(of_engine - logprobs.numpy()).tolist()
    return found


def _sequence(job: Job, tokens: list[Token]) -> Sequence:
    ids = np.array([*job.prompt, *(token.id for token in tokens)])
    return Sequence(ids, np.arange(len(ids)) >= len(job.prompt))


def tried(precision: str, name: str) -> dict[str, Any]:
    """Sample on the CPU and on the GPU, then on the GPU after each of three updates."""
    graphs.VARLEN, options = name == "varlen", VARIANTS[name]
    model = peaked(precision, LoraConfig(rank=4, alpha=2) if name == "adapter" else None)
    cpu, _ = sampled(Engine(copy.deepcopy(model), **options))
    changed, _ = sampled(Engine(updated(copy.deepcopy(model), 3), **options))
    attention._varlen_kernel.cache_clear()
    with FakeCuda(enable_gqa=name != "prefixes").there() as gpu:
        model = model.to("cuda")
        engine = Engine(model, **options)
        got, waits = sampled(engine, gpu)
        apart, recorded = gaps(model, got), [gpu.recorded]
        for version in (1, 2, 3):
            updated(model, 1)
            engine.weights_changed(version)
            after, _ = sampled(engine, gpu)
            recorded.append(gpu.recorded)
        apart_after = gaps(model, after)
        places = sorted({place for _, place in gpu.waits})
    return {
        "cpu": cpu,
        "gpu": got,
        "cpu after updates": changed,
        "gpu after updates": after,
        "waits": waits,
        "places": places,
        "gaps": apart,
        "gaps after updates": apart_after,
        "recorded": recorded,
    }


if __name__ == "__main__":
    json.dump({name: tried(sys.argv[1], name) for name in VARIANTS}, sys.stdout)
