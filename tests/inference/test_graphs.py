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
from hone.model.tokenizer import build_tiny_tokenizer

from .many_jobs import CONFIG, FREE, assert_same, jobs, peaked, sampled

AHEAD = pytest.mark.parametrize("ahead", [False, True])


def slots_engine(model: Decoder, ahead: bool = False, **options) -> Engine:
    engine = Engine(model, cuda_graphs=True, **options)
    assert engine.runner.ahead is False, "on a CPU a step in vain costs its whole time"
    engine.runner.ahead = ahead
    return engine


@AHEAD
@pytest.mark.parametrize("precision", ["fp32", "bf16_linear"])
def test_all_at_once_and_in_any_order_of_arrival(precision, ahead):
    """Batches join and their rows retire; a second round runs in the state that the first has left."""
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
    assert all(state.cache is None for state in engine.runner.states)


@AHEAD
@pytest.mark.parametrize("options", [{}, {"prefill_tokens": 16}, {"prefix_bytes": 2**20}])
def test_cancelled_jobs_and_a_small_cache(options, ahead):
    """The cache has room for a few jobs; what the states hold stays within it."""
    model, some = peaked(), jobs(40, seed=5)
    expected = sampled(Engine(model), some)
    engine = slots_engine(model, ahead, kv_bytes=8 * 192 * kv_bytes_per_token(CONFIG, "fp32", "cpu"), **options)
    got = sampled(engine, some, np.random.default_rng(2), cancel=3)
    assert_same(got, expected)
    for job in some:
        full = job.max_tokens if job.key % 3 else min(job.max_tokens, job.max_tokens // 2 + 1)
        assert len(got[job.key]) == full
    assert sum(state.size for state in engine.runner.states) <= 8 * 192


@AHEAD
@pytest.mark.parametrize("precision", ["fp32", "bf16_linear"])
def test_graphs_are_kept_when_weights_change(precision, ahead):
    """Weights and their bf16 copies are written in place, so the same graphs sample from the new ones."""
    some, model = jobs(6), peaked(precision)
    engine = slots_engine(model, ahead)
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
        assert got == sampled(slots_engine(other, ahead), some)


def test_what_a_diverged_row_has_left_in_its_slot_reaches_nobody():
    engine, some = slots_engine(peaked(), ahead=True), jobs(5)
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


WAYS = [
    SamplingParams(temperature=0, ignore_eos=True),
    SamplingParams(temperature=0.7, ignore_eos=True),
    SamplingParams(top_k=3, top_p=0.9, ignore_eos=True),
    SamplingParams(min_p=0.2, ignore_eos=True),
    SamplingParams(top_logprobs=2, ignore_eos=True),
]


@AHEAD
def test_rows_are_sampled_within_the_step_if_all_are_sampled_in_the_same_way(ahead):
    """A way that asks for the likeliest tokens, and several at once, are sampled behind it, with the same tokens."""
    model = peaked()
    engine = slots_engine(model, ahead)
    for params in WAYS:
        alike = [Job(tuple(range(5 + i, 9 + i)), i, 10, params) for i in range(4)]
        assert_same(sampled(engine, alike), sampled(Engine(model), alike))
    keys = {key[2] for state in engine.runner.states for key in state.graphs}
    assert keys == {params.transform for params in WAYS[:-1]} | {None}
    engine = slots_engine(model, ahead)
    mixed = [Job((5, 6, 7), i, 10 + 5 * i, params) for i, params in enumerate(WAYS[:-1])]
    assert_same(sampled(engine, mixed), sampled(Engine(model), mixed))
    (state,) = engine.runner.states
    assert {key[2] for key in state.graphs} == {None}
    assert_same(sampled(engine, mixed), sampled(Engine(model), mixed))
    assert {key[2] for key in state.graphs} == {None, WAYS[3].transform}, "at last one row is left"


@AHEAD
def test_a_way_to_sample_has_a_graph_when_a_second_prompt_asks_for_it(ahead):
    """Until then the tokens are sampled behind the step, and are the same."""
    model = peaked()
    engine = slots_engine(model, ahead)

    def ways(params: SamplingParams, prompts: int) -> set:
        some = [Job(tuple(range(5 + i // 2, 9 + i // 2)), i, 6, params) for i in range(2 * prompts)]
        assert_same(sampled(engine, some), sampled(Engine(model), some))
        return {key[2] for state in engine.runner.states for key in state.graphs}

    assert ways(WAYS[1], 1) == {None} == ways(WAYS[2], 1)
    assert ways(WAYS[1], 1) == {None, WAYS[1].transform}
    assert ways(WAYS[3], 2) == {WAYS[3].transform}, "of two prompts at once the first; in a larger state"


def test_the_ways_that_are_remembered_are_few(monkeypatch):
    monkeypatch.setattr(graphs, "MAX_WAYS", 3)
    engine = slots_engine(peaked())
    for temperature in (1.0, 2.0, 3.0, 1.0, 4.0):
        engine.run([Job((5, 6), 0, 3)], SamplingParams(temperature=temperature, ignore_eos=True))
    assert [(way[0], count) for way, count in engine.runner._asked.items()] == [(3.0, 1), (1.0, 2), (4.0, 1)]


def steps_launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the slots of each step."""
    launched, decode = [], graphs._decode
    monkeypatch.setattr(graphs, "_decode", lambda *args: launched.append(args[2]) or decode(*args))
    return launched


def test_no_step_begins_for_rows_that_have_no_token_left(monkeypatch):
    """A step is in vain where all rows stopped before their limit, which is not known when it begins."""
    model, launched = peaked(), steps_launched(monkeypatch)
    for ahead in (False, True):
        slots_engine(model, ahead).run([Job((5, 6), i, 6, FREE) for i in range(3)], FREE)
        assert launched == [3] * 5
        launched.clear()
    (ids,) = (c.token_ids for c in Engine(model).run([Job((5, 6), 0, 30, FREE)], FREE))
    stop = next(i for i, id in enumerate(ids) if i > 2 and id not in ids[:i])
    for ahead in (False, True):
        engine = slots_engine(model, ahead)
        (completion,) = engine.run([Job((5, 6), 0, 30, SamplingParams(stop=(ids[stop],), ignore_eos=True))], FREE)
        assert (completion.token_ids, completion.stop_reason) == (ids[: stop + 1], "stop")
        assert len(launched) == stop + ahead and not engine.busy
        launched.clear()


@AHEAD
def test_stop_strings_end_a_completion(ahead):
    model, tokenizer = peaked(), build_tiny_tokenizer()
    jobs = [Job((5, 6, 7), i, 40, FREE) for i in range(6)]
    text = tokenizer.decode(Engine(model).run(jobs[:1], FREE)[0].token_ids)
    stopping = SamplingParams(stop=(text[4:6],), ignore_eos=True)
    jobs = [Job(job.prompt, job.key, 40, stopping) for job in jobs]
    expected = Engine(model, tokenizer=tokenizer).run(jobs, stopping)
    got = slots_engine(model, ahead, tokenizer=tokenizer).run(jobs, stopping)
    assert [(c.token_ids, c.stop_reason) for c in got] == [(c.token_ids, c.stop_reason) for c in expected]
    assert expected[0].stop_reason == "stop"


def test_graphs_not_used_for_longest_are_dropped(monkeypatch):
    monkeypatch.setattr(graphs, "MAX_GRAPHS", 3)
    engine = slots_engine(peaked())
    for temperature in (1.0, 2.0, 3.0, 1.0, 4.0):
        engine.run([Job((5, i), i, 3) for i in range(2)], SamplingParams(temperature=temperature, ignore_eos=True))
    (state,) = engine.runner.states
    assert [key[2][0] for key in state.graphs] == [3.0, 1.0, 4.0]
