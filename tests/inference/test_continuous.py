"""Continuous batching: whatever joins, leaves, waits or is shared, a job gets the tokens that it gets alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hone.errors import UserError
from hone.inference.engine import Engine
from hone.inference.memory import kv_bytes_per_token
from hone.inference.prefill import BLOCK, PrefixCache
from hone.inference.types import Job, SamplingParams, Token
from hone.model.attention import PackedAttention

from .many_jobs import CONFIG, FREE, peaked


@pytest.fixture(scope="module")
def model():
    return peaked()


def random_jobs(seed: int, count: int, params: SamplingParams = FREE) -> list[Job]:
    rng = np.random.default_rng(seed)
    return [
        Job(
            prompt=tuple(rng.integers(4, 250, rng.integers(1, 40)).tolist()),
            key=1000 + i,
            max_tokens=int(rng.integers(1, 30)),
            params=params,
        )
        for i in range(count)
    ]


def alone(model, job: Job):
    (completion,) = Engine(model).run([job], FREE)
    return completion


def collect(engine: Engine, arrivals: dict[int, list[Job]], cancelled: dict[int, int] | None = None):
    """Tokens of each job by its key; `arrivals` says before which step jobs come, `cancelled` which key leaves then."""
    keys: dict[int, int] = {}
    got: dict[int, list[Token]] = {}
    step = 0
    while engine.busy or any(at >= step for at in arrivals):
        for job in arrivals.get(step, []):
            keys[engine.add(job)] = job.key
            got[job.key] = []
        for ticket, key in list(keys.items()):
            if cancelled and cancelled.get(step) == key:
                engine.cancel(ticket)
        for token in engine.step():
            got[keys[token.ticket]].append(token)
        step += 1
    return got


def assert_as_alone(model, got: dict[int, list[Token]], jobs: list[Job]) -> None:
    for job in jobs:
        expected = alone(model, job)
        tokens = got[job.key]
        assert [token.id for token in tokens] == expected.token_ids
        assert np.abs(np.array([token.logprob for token in tokens]) - expected.logprobs).max() <= 1e-5
        assert [token.stop_reason for token in tokens[:-1]] == [None] * (len(tokens) - 1)
        assert tokens[-1].stop_reason == expected.stop_reason


@pytest.mark.parametrize("seed", range(2))
def test_jobs_that_join_at_random_get_their_own_tokens(model, seed):
    jobs = random_jobs(seed, 24)
    rng = np.random.default_rng(100 + seed)
    arrivals: dict[int, list[Job]] = {}
    for job in jobs:
        arrivals.setdefault(int(rng.integers(0, 40)), []).append(job)
    engine = Engine(model)
    assert_as_alone(model, collect(engine, arrivals), jobs)
    assert not engine.busy and not engine._batches


def test_a_cancelled_job_leaves_wherever_it_is_and_nobody_else_notices(model):
    jobs = [Job((5, 6, 7), key, 25, FREE) for key in range(6)]
    got = collect(Engine(model), {0: jobs[:4], 3: jobs[4:]}, cancelled={0: 1, 5: 2, 6: 4})
    assert got[1] == [] and len(got[2]) == 5 and len(got[4]) == 3
    assert_as_alone(model, got, [jobs[i] for i in (0, 3, 5)])


@pytest.mark.parametrize("runner", [{}, {"batch_invariant": True}, {"cuda_graphs": True}], ids=str)
def test_a_token_comes_with_the_ids_that_it_was_sampled_among_if_its_job_asks(model, runner):
    """Beside jobs that ask for nothing or for the likeliest; the tokens are those of jobs that don't ask."""
    cut = SamplingParams(temperature=1.5, top_k=9, top_p=0.8, min_p=0.02, ignore_eos=True)
    asking = replace(cut, return_kept_ids=True)
    ways = [FREE, asking, replace(asking, top_logprobs=3), replace(FREE, top_logprobs=5), replace(asking, top_k=0)]
    jobs = [Job((5, 6, 7, 8), key, 12, params) for key, params in enumerate(ways)]
    got = collect(Engine(model, **runner), {0: jobs[:3], 2: jobs[3:]})
    plain = collect(Engine(model, **runner), {0: [Job((5, 6, 7, 8), key, 12, cut) for key in (1, 2)]})
    for key in (1, 2):
        assert [token.id for token in got[key]] == [token.id for token in plain[key]]
    assert [[len(token.top) for token in got[key]] for key in got] == [[n] * 12 for n in (0, 0, 3, 5, 0)]
    for job in jobs:
        ids = [*job.prompt, *(token.id for token in got[job.key])]
        for place, token in enumerate(got[job.key], start=len(job.prompt)):
            if not job.params.return_kept_ids or not job.params.keeps_ids:
                assert token.candidates is None
                continue
            with torch.no_grad():
                hidden = model.hidden(torch.tensor(ids[:place]), torch.arange(place), PackedAttention([place]))
                logits = model.logits(hidden[-1:]) / 1.5
            order = logits[0].argsort(descending=True)[: job.params.top_k or None]
            probs = logits[0, order].double().softmax(-1)
            count = int((probs.cumsum(-1) - probs < 0.8).sum())
            kept = order[:count][probs[:count] >= 0.02 * probs[0]]
            assert token.candidates is not None and token.candidates.tolist() == sorted(kept.tolist())
            right = logits[0, kept].double().log_softmax(-1)[kept.tolist().index(token.id)]
            assert token.logprob == pytest.approx(float(right), abs=1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_in_chunks_gives_the_same_tokens_while_others_decode(model, chunk):
    jobs = random_jobs(3, 6)
    assert_as_alone(model, collect(Engine(model, prefill_tokens=chunk), {0: jobs[:2], 2: jobs[2:]}), jobs)


def test_requests_that_begin_alike_share_what_was_computed(model, monkeypatch):
    system = tuple(range(10, 10 + 3 * BLOCK + 5))
    jobs = [Job((*system, 100 + key), key, 10, FREE) for key in range(3)]
    sizes = []
    original = model.hidden
    monkeypatch.setattr(model, "hidden", lambda ids, *rest: sizes.append(len(ids)) or original(ids, *rest))
    got = collect(Engine(model, prefix_bytes=2**20), {0: jobs[:1], 20: jobs[1:2], 40: jobs[2:]})
    assert [size for size in sizes if size > 1] == [len(system) + 1, 6, 6]
    monkeypatch.undo()
    assert_as_alone(model, got, jobs)


def test_new_weights_forget_old_prefixes_and_tokens_tell_their_version(model):
    engine = Engine(model, prefix_bytes=2**20)
    engine.add(Job(tuple(range(10, 60)), 1, 8, FREE))
    versions = [token.version for _ in range(3) for token in engine.step()]
    assert engine.prefill.prefixes.bytes > 0
    engine.weights_changed(5)
    assert engine.prefill.prefixes.bytes == 0
    while engine.busy:
        versions += [token.version for token in engine.step()]
    assert versions == [0] * 3 + [5] * 5


def test_the_prefix_cache_keeps_to_its_bytes_and_drops_the_least_used():
    def layers(tokens: int, value: float):
        return [(torch.full((tokens, 2, 4), value), torch.full((tokens, 2, 4), -value))]

    size = 2 * 2 * BLOCK * 2 * 4 * 4
    cache = PrefixCache(2 * size)
    one, two, three = (tuple(range(start, start + 2 * BLOCK)) for start in (0, 100, 200))
    cache.add(one, layers(2 * BLOCK, 1.0))
    cache.add(two, layers(2 * BLOCK, 2.0))
    found, length = cache.longest((*one[: BLOCK + 3], 999))
    assert length == BLOCK and found[0][0].shape[0] == BLOCK and float(found[0][0][0, 0, 0]) == 1.0
    cache.add(three, layers(2 * BLOCK, 3.0))
    assert cache.longest(two) == ([], 0) and cache.longest(one)[1] == cache.longest(three)[1] == 2 * BLOCK
    assert cache.bytes == 2 * size
    cache.add(tuple(range(300, 300 + 8 * BLOCK)), layers(8 * BLOCK, 4.0))
    assert cache.bytes == 2 * size, "what is larger than the cache is not kept"
    cache.clear()
    assert cache.bytes == 0 and cache.longest(one) == ([], 0)


ENGINES = [{}, {"batch_invariant": True}, {"cuda_graphs": True}]


@pytest.mark.parametrize("options", ENGINES)
def test_the_cache_stays_within_its_bytes(model, options):
    """Short jobs too, whose rows are rounded up; a job that doesn't fit alone is let in when nothing else runs."""
    tokens = 2000
    engine = Engine(model, kv_bytes=tokens * kv_bytes_per_token(CONFIG, "fp32", "cpu"), **options)
    for i in range(60):
        engine.add(Job((5, 6, 7 + i), i, 30, FREE))
    most = 0
    while engine.busy:
        engine.step()
        most = max(most, sum(batch.cache.tokens for batch in engine._batches))
    assert 0 < most <= tokens
    assert engine.run([Job(tuple(range(4, 200)) * 9, 1, 5, FREE)], FREE)[0].stop_reason == "length"


def test_a_prompt_that_was_half_computed_when_weights_changed_is_no_prefix(model):
    """Its keys and values are of two versions; the next one that begins like it gets what it gets alone."""
    prompt = tuple(range(10, 60))
    engine = Engine(model, prefill_tokens=16, prefix_bytes=2**20)
    engine.add(Job(prompt, 1, 2, FREE))
    engine.step()
    assert engine._starting is not None
    engine.weights_changed(1)
    while engine.busy:
        engine.step()
    assert engine.prefill.prefixes.bytes == 0
    job = Job((*prompt[:40], 7), 2, 6, FREE)
    assert engine.run([job], FREE) == [alone(model, job)]
    assert engine.prefill.prefixes.bytes > 0


def test_a_refused_job_leaves_none_of_its_call_behind(model):
    engine = Engine(model)
    with pytest.raises(UserError, match=r"the stop string 'x' needs a tokenizer"):
        engine.run([Job((5,), 1, 5), Job((6,), 2, 5, SamplingParams(stop=("x",)))], FREE)
    assert not engine.busy
