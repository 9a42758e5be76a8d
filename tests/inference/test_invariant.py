"""Batch invariance: whatever else is sampled, however prompts are computed, a job has the same tokens, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from hone.inference import invariant
from hone.inference.engine import Engine

from .many_jobs import jobs, peaked, sampled


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", pytest.param("bf16", marks=pytest.mark.long)])
def test_a_job_is_the_same_alone_and_among_others(precision):
    """Alone, all at once, in random order and arrival, in chunks, behind cached prefixes, and in a small cache."""
    model, all_jobs = peaked(precision), jobs(20)
    alone = {}
    for job in all_jobs:
        alone |= sampled(Engine(model, batch_invariant=True), [job])
    draw = np.random.default_rng(3)
    assert sampled(Engine(model, batch_invariant=True), all_jobs) == alone
    for options in ({}, {"prefill_tokens": 33}, {"prefix_bytes": 2**24}, {"kv_bytes": 2**21, "prefix_bytes": 2**20}):
        engine = Engine(model, batch_invariant=True, **options)
        order = [all_jobs[i] for i in draw.permutation(len(all_jobs))]
        assert sampled(engine, order, draw) == alone, options
        if "prefix_bytes" in options:
            assert sampled(engine, order, draw) == alone, "with prompts that are all cached"


def test_where_kernels_treat_rows_differently_a_tile_has_one(monkeypatch):
    """Slow, and still invariant."""
    monkeypatch.setattr(invariant, "rows_are_alike", lambda model: False)
    model, few = peaked("fp32"), jobs(6)
    engine = Engine(model, batch_invariant=True)
    together = sampled(engine, few)
    assert engine.runner.tile == 1
    assert all(sampled(Engine(model, batch_invariant=True), [job])[job.key] == together[job.key] for job in few)
