"""Jobs of many shapes, and what an engine samples of them."""

from __future__ import annotations

import numpy as np
import torch

from hone.config.shared import InitConfig
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams
from hone.model.decoder import Decoder
from hone.model.presets import random_decoder, tiny_config

CONFIG = tiny_config(InitConfig(layers=2, hidden=48, heads=4, kv_heads=2, head_dim=16, intermediate=64))
FREE = SamplingParams(ignore_eos=True)


def peaked(precision: str = "fp32", seed: int = 2) -> Decoder:
    """A random model with a peaked distribution: different tokens have clearly different logprobs."""
    decoder = random_decoder(CONFIG, seed=seed, precision=precision)
    with torch.no_grad():
        decoder.embed.mul_(8)
    decoder.refresh()
    return decoder


def jobs(count: int, seed: int = 0, shared: int = 40) -> list[Job]:
    """Jobs of different lengths; half of them begin with the same 40 tokens, some have equal prompts."""
    draw = np.random.default_rng(seed)
    system = tuple(draw.integers(4, 250, shared).tolist())
    found: list[Job] = []
    for i in range(count):
        prompt = tuple(draw.integers(4, 250, draw.integers(1, 70)).tolist())
        prompt = system + prompt if i % 2 else prompt
        prompt = found[-1].prompt if i % 5 == 4 else prompt
        found.append(Job(prompt, key=1000 + i, max_tokens=int(draw.integers(1, 50)), params=FREE))
    return found


def sampled(engine: Engine, order: list[Job], arrivals: np.random.Generator | None = None, cancel: int | None = None):
    """{key: [(token, logprob)]}; with `arrivals` the jobs come a few at a time; every `cancel`th is dropped halfway."""
    waiting, tickets = list(order), {}
    got: dict[int, list[tuple[int, float]]] = {job.key: [] for job in order}
    while waiting or engine.busy:
        for _ in range(len(waiting) if arrivals is None else arrivals.integers(0, 4)):
            if waiting:
                job = waiting.pop(0)
                tickets[engine.add(job)] = job
        for token in engine.step():
            job = tickets[token.ticket]
            got[job.key].append((token.id, token.logprob))
            if cancel and job.key % cancel == 0 and len(got[job.key]) * 2 > job.max_tokens:
                engine.cancel(token.ticket)
    return got


def assert_same(got: dict[int, list[tuple[int, float]]], expected: dict[int, list[tuple[int, float]]]) -> None:
    """Each job's tokens are the first of those expected, with the same logprobs up to rounding."""
    assert got.keys() == expected.keys()
    for key, pairs in expected.items():
        mine = got[key]
        assert [token for token, _ in mine] == [token for token, _ in pairs[: len(mine)]]
        np.testing.assert_allclose([p for _, p in mine], [p for _, p in pairs[: len(mine)]], atol=1e-5)
