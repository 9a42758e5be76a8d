"""Decode with graphs on the fake GPU and on the CPU; print as JSON what was sampled, and what each step launched."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fake_cuda import FakeCuda  # first of hone's: it patches torch.cuda

sys.path.append(str(Path(__file__).parents[1] / "inference"))
from engines import peaked, updated
from many_jobs import CONFIG
from many_jobs import jobs as drawn_jobs

from hone.config.rl import RLConfig
from hone.inference import graphs
from hone.inference.engine import Engine
from hone.inference.memory import GIB, GRAPHS_GIB, kv_bytes_per_token, sampling_bytes, slot_tokens
from hone.inference.types import Job, SamplingParams, Token
from hone.model.presets import random_decoder

WAYS = {
    "free": SamplingParams(ignore_eos=True),
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
    "warm": SamplingParams(temperature=0.7, ignore_eos=True),
    "top_k": SamplingParams(top_k=5, ignore_eos=True),
    "top_p": SamplingParams(top_p=0.8, ignore_eos=True),
    "min_p": SamplingParams(min_p=0.1, ignore_eos=True),
    "top_logprobs": SamplingParams(top_logprobs=3, ignore_eos=True),
}
PROMPTS = [job.prompt for job in drawn_jobs(8, seed=4)]
STOPS = tuple(range(0, 250, 7))


def alike(params: SamplingParams, new: int = 12) -> list[Job]:
    return [Job(prompt, 50 + i, new, params) for i, prompt in enumerate(PROMPTS)]


CASES: dict[str, list[Job]] = {
    **{name: alike(params) for name, params in WAYS.items()},
    "mixed": [replace(job, params=way) for job, way in zip(alike(WAYS["free"]), WAYS.values(), strict=False)],
    "stops": alike(replace(WAYS["free"], stop=STOPS), new=40),
}
"""Jobs that begin together."""
LATER = [replace(job, max_tokens=9) for job in drawn_jobs(4, seed=6)]


def sampled(engine: Engine, first: list[Job], later: bool, gpu: FakeCuda | None = None) -> dict[str, Any]:
    """Return the tokens of each job, and of each step what it waited for and launched. `later`: before step 4 more jobs
    come, before step 6 one is cancelled, and before step 8 weights change.
    """
    keys, got = {engine.add(job): i for i, job in enumerate(first)}, [[] for _ in first]
    steps: list[dict[str, Any]] = []
    while engine.busy:
        if later and len(steps) == 4:
            keys |= {engine.add(job): len(got) + i for i, job in enumerate(LATER)}
            got += [[] for _ in LATER]
        if later and len(steps) == 6:
            engine.cancel(2)
        if later and len(steps) == 8:
            updated(engine.model, 1)
            engine.weights_changed(1)
        before = counted(gpu)
        for event in engine.step():
            assert isinstance(event, Token)
            got[keys[event.ticket]].append((event.id, event.logprob, event.version, event.stop_reason))
        steps.append({name: now - before[name] for name, now in counted(gpu).items()})
    return {"tokens": got, "steps": steps}


def counted(gpu: FakeCuda | None) -> dict[str, Any]:
    if gpu is None:
        return {}
    waits = Counter(kind for kind, _ in gpu.waits.elements())
    return {"waits": waits, "launched": gpu.launched, "recorded": gpu.recorded, "operations": gpu.operations.copy()}


def ten_steps(gpu: FakeCuda) -> dict[str, Any]:
    """Sample ten steps of RL, each of 4 x 4 completions of at most 100 tokens that end later from step to step, and
    before every fifth an evaluation of 6 prompts; return the graphs recorded in each.
    """
    tokens = slot_tokens(70 + 100)
    engine = Engine(
        peaked("fp32").to("cuda"), 16 * tokens * kv_bytes_per_token(CONFIG, "fp32", "cuda"), cuda_graphs=True
    )
    draw, recorded, addresses = np.random.default_rng(0), [], set()
    for step in range(10):
        before = gpu.recorded
        if step % 5 == 0:
            engine.run([Job(job.prompt, job.key, 60) for job in drawn_jobs(6, seed=step, shared=0)], WAYS["greedy"])
        prompts = [tuple(draw.integers(4, 250, draw.integers(20, 70)).tolist()) for _ in range(4)]
        jobs = [Job(prompt, 100 * step + i, 100, WAYS["free"]) for prompt in prompts for i in range(4)]
        ends = {engine.add(job): int(draw.integers(5, 10 + 10 * step)) for job in jobs}
        while engine.busy:
            for event in engine.step():
                ends[event.ticket] -= 1
                if not ends[event.ticket]:
                    engine.cancel(event.ticket)
        recorded.append(gpu.recorded - before)
        addresses.add(engine.runner.state.stored[0].data_ptr())
    return {"recorded": recorded, "places": len(addresses)}


def memory(gpu: FakeCuda) -> dict[str, int]:
    """Return the bytes of slots and of other tensors of a step, as planned and as they are: 16 rows of 128 tokens."""
    model = random_decoder(replace(CONFIG, vocab_size=12800), seed=0, precision="bf16").to("cuda")
    config = RLConfig(model={"name": "tiny"}, precision="bf16")
    config.orchestrator.batch_size, config.orchestrator.rollouts_per_example = 16, 4
    room = 16 * 128 * kv_bytes_per_token(model.config, "bf16", "cuda")
    config.inference.kv_gib, config.inference.cuda_graphs = room / GIB, True
    planned = sampling_bytes(config, model.config, "cuda", 60, 64)
    engine = Engine(model, room, cuda_graphs=True)
    jobs = [Job(tuple(range(4 + i, 64 + i)), i, 64, WAYS["free"]) for i in range(4) for _ in range(4)]
    for job in jobs:
        engine.add(job)
    engine.step()  # admits, and launches a first step
    state = engine.runner.state
    engine.clear()
    before = gpu.peak = gpu.live
    with torch.no_grad():
        graphs._decode(model, state, 16, 128)
        graphs._sample(state, 16, WAYS["free"])
    return {
        "slots planned": planned["kv slots"],
        "slots": sum(layer.nbytes for layer in state.stored),
        "step planned": planned["graphs"] - int(GRAPHS_GIB * GIB),
        "step": gpu.peak - before + state.logits.nbytes,
        "left": gpu.live - before,
    }


def main() -> None:
    model = peaked("fp32")
    cases = CASES | {"joined": CASES["warm"], "joined and mixed": CASES["mixed"]}
    cpu = {name: sampled(Engine(copy.deepcopy(model)), jobs, "joined" in name) for name, jobs in cases.items()}
    gpu = {}
    with FakeCuda().there() as fake:
        for name, jobs in cases.items():
            engine = Engine(copy.deepcopy(model).to("cuda"), cuda_graphs=True)
            gpu[name] = sampled(engine, jobs, "joined" in name, fake)
        more = {"steps": ten_steps(fake), "memory": memory(fake)}
    cpu = {name: result["tokens"] for name, result in cpu.items()}
    json.dump({"cpu": cpu, "gpu": gpu} | more, sys.stdout)


if __name__ == "__main__":
    main()
