"""Decoding in fixed slots, as it is recorded on a GPU: run here without recording, it samples as the usual engine does.

That a step can be recorded, and that its replay computes the same, is tested in tests/device.
"""

from __future__ import annotations

import numpy as np
import pytest

from hone.inference.engine import Engine
from hone.inference.memory import kv_bytes_per_token
from hone.inference.types import Job

from .many_jobs import CONFIG, FREE, assert_same, jobs, peaked, sampled


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear"])
def test_all_at_once_and_in_any_order_of_arrival(precision):
    """Batches join and their rows retire; a second round runs in the state that the first has left."""
    model, some = peaked(precision), jobs(40)
    expected = sampled(Engine(model), some)
    engine = Engine(model, cuda_graphs=True)
    got = sampled(engine, some)
    assert {key: len(pairs) for key, pairs in got.items()} == {job.key: job.max_tokens for job in some}
    if precision == "fp32":
        assert_same(got, expected)
    draw = np.random.default_rng(1)
    for _ in range(2):
        order = [some[i] for i in draw.permutation(len(some))]
        if precision == "fp32":
            assert_same(sampled(engine, order, draw), expected)
    assert all(state.cache is None for state in engine.runner.states)


@pytest.mark.parametrize("options", [{}, {"prefill_tokens": 16}, {"prefix_bytes": 2**20}])
def test_cancelled_jobs_and_a_small_cache(options):
    """The cache has room for a few jobs; what the states hold stays within it."""
    model, some = peaked(), jobs(40, seed=5)
    expected = sampled(Engine(model), some)
    engine = Engine(model, kv_bytes=8 * 192 * kv_bytes_per_token(CONFIG, "fp32", "cpu"), cuda_graphs=True, **options)
    got = sampled(engine, some, np.random.default_rng(2), cancel=3)
    assert_same(got, expected)
    for job in some:
        full = job.max_tokens if job.key % 3 else min(job.max_tokens, job.max_tokens // 2 + 1)
        assert len(got[job.key]) == full
    assert sum(state.size for state in engine.runner.states) <= 8 * 192


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear"])
def test_graphs_are_kept_when_weights_change(precision):
    """Weights and their bf16 copies are written in place, so the same graphs sample from the new ones."""
    some, model = jobs(6), peaked(precision)
    engine = Engine(model, cuda_graphs=True)
    sampled(engine, some)
    (state,) = engine.runner.states
    before = dict(state.graphs)
    assert len(before) > 3
    for seed in (3, 4, 5):
        other = peaked(precision, seed=seed)
        model.load_state_dict(other.state_dict())
        model.refresh()
        engine.weights_changed(seed)
        got = sampled(engine, some)
        assert engine.runner.states == [state] and state.graphs == before
        assert got == sampled(Engine(other, cuda_graphs=True), some)


def test_what_a_diverged_row_has_left_in_its_slot_reaches_nobody():
    engine, some = Engine(peaked(), cuda_graphs=True), jobs(5)
    expected = sampled(engine, some)
    (state,) = engine.runner.states
    for layer in state.layers:
        layer.fill_(float("nan"))
    assert_same(sampled(engine, some), expected)


def test_a_batch_that_has_to_stay_apart_gets_the_room_that_others_have_in_excess():
    """All but one of eight rows end; their slots, and a state that nobody uses, go when a long job needs the cache."""
    engine = Engine(peaked(), kv_bytes=1500 * kv_bytes_per_token(CONFIG, "fp32", "cpu"), cuda_graphs=True)
    short = [Job((5, 6), i, 60 if i == 0 else 2, FREE) for i in range(8)]
    sampled(engine, [Job((5, 6, 7), 0, 100, FREE)])
    sampled(engine, [Job((5, 6, 7), 0, 200, FREE)])
    assert [state.size for state in engine.runner.states] == [256]
    sampled(engine, short)
    assert [state.size for state in engine.runner.states] == [256, 8 * 64]
    got: dict[int, list[tuple[int, float]]] = {1: [], 9: []}
    tickets = {engine.add(job): 1 + job.key for job in short}
    for step in range(60):
        if step == 5:
            long = Job(tuple(range(4, 250)) * 4, 9, 40, FREE)
            tickets[engine.add(long)] = long.key
        for token in engine.step():
            if tickets[token.ticket] in got:
                got[tickets[token.ticket]].append((token.id, token.logprob))
        if step == 6:
            assert [state.size for state in engine.runner.states] == [64, 1024]
    assert_same(got, {1: sampled(Engine(peaked()), short)[0], 9: sampled(Engine(peaked()), [long])[9]})
