"""Decoding in fixed slots, as it is recorded on a GPU: run here without recording, it samples as the usual engine does.

So it does when a step begins before the host has read the tokens of the one before (`AHEAD`). tests/device records.
"""

from __future__ import annotations

import numpy as np
import pytest

from hone.inference import graphs
from hone.inference.engine import Engine
from hone.inference.memory import kv_bytes_per_token
from hone.inference.types import Job, SamplingParams
from hone.model.decoder import Decoder

from .many_jobs import CONFIG, assert_same, jobs, peaked, sampled

AHEAD = pytest.mark.parametrize("ahead", [False, True])


def slots_engine(model: Decoder, ahead: bool = False, **options) -> Engine:
    engine = Engine(model, cuda_graphs=True, **options)
    assert engine.runner.ahead is False, "on a CPU a step in vain costs its whole time"
    engine.runner.ahead = ahead
    return engine


@AHEAD
@pytest.mark.parametrize("precision", ["fp32", "bf16_linear"])
def test_all_at_once_and_in_any_order_of_arrival(precision, ahead):
    """Rows join and retire; a second round runs in the slots that the first has left."""
    model, some = peaked(precision), jobs(40)
    expected = sampled(Engine(model), some)
    engine = slots_engine(model, ahead)
    got = sampled(engine, some)
    assert {key: len(pairs) for key, pairs in got.items()} == {job.key: job.max_tokens for job in some}
    if precision == "fp32":
        assert_same(got, expected)
    draw = np.random.default_rng(1)
    for _ in range(2):
        order = [some[i] for i in draw.permutation(len(some))]
        if precision == "fp32":
            assert_same(sampled(engine, order, draw), expected)


@AHEAD
@pytest.mark.parametrize("options", [{}, {"prefill_tokens": 16}, {"prefix_bytes": 2**20}])
def test_cancelled_jobs_and_a_small_cache(options, ahead):
    """The cache has room for a few jobs; what the slots hold stays within it."""
    model, some = peaked(), jobs(40, seed=5)
    expected = sampled(Engine(model), some)
    engine = slots_engine(model, ahead, kv_bytes=8 * 192 * kv_bytes_per_token(CONFIG, "fp32", "cpu"), **options)
    got = sampled(engine, some, np.random.default_rng(2), cancel=3)
    assert_same(got, expected)
    for job in some:
        full = job.max_tokens if job.key % 3 else min(job.max_tokens, job.max_tokens // 2 + 1)
        assert len(got[job.key]) == full
    assert engine.runner.state.size <= 8 * 192


@AHEAD
@pytest.mark.parametrize("precision", ["fp32", "bf16_linear"])
def test_graphs_are_kept_when_weights_change(precision, ahead):
    """Weights and their bf16 copies are written in place, so the same graphs sample from the new ones."""
    some, model = jobs(6), peaked(precision)
    engine = slots_engine(model, ahead)
    sampled(engine, some)
    before = dict(engine.runner.graphs)
    assert len(before) > 3
    for seed in (3, 4, 5):
        other = peaked(precision, seed=seed)
        model.load_state_dict(other.state_dict())
        model.refresh()
        engine.weights_changed(seed)
        got = sampled(engine, some)
        assert engine.runner.graphs == before
        assert got == sampled(slots_engine(other, ahead), some)


def test_what_a_diverged_row_has_left_in_its_slot_reaches_nobody():
    engine, some = slots_engine(peaked(), ahead=True), jobs(5)
    expected = sampled(engine, some)
    for layer in engine.runner.state.layers:
        layer.fill_(float("nan"))
    assert_same(sampled(engine, some), expected)


WAYS = [
    SamplingParams(temperature=0, ignore_eos=True),
    SamplingParams(temperature=0.7, ignore_eos=True),
    SamplingParams(top_k=3, top_p=0.9, ignore_eos=True),
    SamplingParams(min_p=0.2, ignore_eos=True),
    SamplingParams(top_logprobs=2, ignore_eos=True),
]


def ways_recorded(engine: Engine) -> set[tuple]:
    return {what for *_, what in engine.runner.graphs if isinstance(what, tuple)}


@AHEAD
def test_rows_are_sampled_within_the_step_if_all_are_sampled_in_the_same_way(ahead):
    """A way that asks for the likeliest tokens, and several at once, are sampled behind it, with the same tokens."""
    model = peaked()
    engine = slots_engine(model, ahead)
    for params in WAYS:
        alike = [Job(tuple(range(5 + i, 9 + i)), i, 10, params) for i in range(4)]
        assert_same(sampled(engine, alike), sampled(Engine(model), alike))
    assert ways_recorded(engine) == {params.transform for params in WAYS[:-1]}
    engine = slots_engine(model, ahead)
    mixed = [Job((5, 6, 7), i, 10 + 5 * i, params) for i, params in enumerate(WAYS[:-1])]
    assert_same(sampled(engine, mixed), sampled(Engine(model), mixed))
    assert ways_recorded(engine) == set()
    assert_same(sampled(engine, mixed), sampled(Engine(model), mixed))
    assert ways_recorded(engine) == {params.transform for params in WAYS[:-1]}, "at last one row is left"


def test_the_ways_that_are_remembered_are_few(monkeypatch):
    monkeypatch.setattr(graphs, "MAX_WAYS", 3)
    engine = slots_engine(peaked())
    for temperature in (1.0, 2.0, 3.0, 1.0, 4.0):
        engine.run([Job((5, 6), 0, 3)], SamplingParams(temperature=temperature, ignore_eos=True))
    assert [(way[0], count) for way, (count, _) in engine.runner._asked.items()] == [(3.0, 1), (1.0, 2), (4.0, 1)]


def test_graphs_not_used_for_longest_are_dropped(monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 5)
    monkeypatch.setattr(graphs, "FEW", 1)
    engine = slots_engine(peaked())
    for temperature in (1.0, 2.0, 3.0, 1.0, 4.0):
        engine.run([Job((5, i), i, 3) for i in range(2)], SamplingParams(temperature=temperature, ignore_eos=True))
    assert [way[0] for *_, way in engine.runner.graphs if not isinstance(way, int)] == [1.0, 1.0, 4.0, 4.0]
