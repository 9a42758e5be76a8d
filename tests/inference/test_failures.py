"""Logits that are not finite end their own job; an engine that was cleared after an error samples as before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hone import rng
from hone.errors import UserError
from hone.inference.engine import Engine
from hone.inference.sampler import inverse_cdf, sample_tokens
from hone.inference.types import Job, SamplingParams, Token
from hone.model.decoder import Decoder
from hone.model.presets import random_decoder, tiny_config

FREE = SamplingParams(ignore_eos=True)
BAD = 99
"""A token that the tests make harmful."""
RUNNERS = pytest.mark.parametrize("runner", [{}, {"batch_invariant": True}, {"cuda_graphs": True}], ids=str)


@pytest.fixture(scope="module")
def model() -> Decoder:
    """Its head is its own, so that a token's embedding matters only where the token is read."""
    made = random_decoder(replace(tiny_config(None), tie_word_embeddings=False), seed=0)
    with torch.no_grad():
        assert made.lm_head is not None
        made.embed[BAD] = float("nan")
        made.lm_head.mul_(2)[BAD].zero_()
    made.refresh()
    return made


def job(i: int, prompt: tuple[int, ...] = (70, 71), params: SamplingParams = FREE, max_tokens: int = 6) -> Job:
    return Job(prompt, rng.key(0, "failures", i), max_tokens, replace(params))  # each job is a request of its own


def sampled(engine: Engine, jobs: list[Job]) -> list[list[int] | str]:
    """Return the ids of each job, or why it failed."""
    tickets = [engine.add(job) for job in jobs]
    got: dict[int, list[int] | str] = {ticket: [] for ticket in tickets}
    while engine.busy:
        for event in engine.step():
            ids = got[event.ticket]
            assert isinstance(ids, list), "nothing comes after a failure"
            if isinstance(event, Token):
                ids.append(event.id)
            else:
                got[event.ticket] = event.reason
    return [got[ticket] for ticket in tickets]


def undisturbed(model: Decoder, jobs: list[Job]) -> list[list[int]]:
    return [Engine(model).run([job], job.params or FREE)[0].token_ids for job in jobs]


@RUNNERS
def test_logits_that_are_not_finite_end_their_own_sample(model: Decoder, runner: dict[str, Any]) -> None:
    jobs = [job(0), job(1, (70, BAD)), job(2, (71,), SamplingParams(temperature=0.7, top_k=5, top_logprobs=2))]
    first, bad, last = sampled(Engine(model, **runner), jobs)
    assert [first, last] == undisturbed(model, [jobs[0], jobs[2]])
    assert "logits are not finite" in bad


@pytest.mark.parametrize("size", [5, 1500])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("how", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}, {"temperature": 0}], ids=str)
def test_any_row_gets_a_token_of_the_vocabulary(size: int, value: float, how: dict[str, Any]) -> None:
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    logits[1, 3] = value
    uniforms = torch.full((3,), 0.999, dtype=torch.float64)
    tokens, logprobs, _ = sample_tokens(logits, uniforms, SamplingParams(**how))
    assert all(0 <= token < size for token in tokens.tolist())
    assert logprobs.isfinite().tolist() == [True, False, True]
    clean = sample_tokens(logits[::2], uniforms[::2], SamplingParams(**how))
    assert torch.equal(tokens[::2], clean[0]) and torch.equal(logprobs[::2], clean[1])
    assert inverse_cdf(torch.zeros(1, size), uniforms[:1]).item() < size


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": float("inf")}, {"temperature": float("nan")}, {"top_k": 2**31}, {"stop": (2**70,)}],
    ids=str,
)
def test_parameters_that_no_tensor_holds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        SamplingParams(**wrong)


@RUNNERS
def test_after_a_step_that_fails_a_cleared_engine_samples_as_before(
    model: Decoder, runner: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer fails half way through a prefill or a decode step, whose keys and values are partly written."""
    jobs = [job(0, max_tokens=12), job(1, (71, 72, 73), max_tokens=9)]
    last, engine, expected = model.layers[-1], Engine(model, **runner), undisturbed(model, jobs)
    forward = last.forward
    for fails_at in (0, 2, 5):
        calls = iter(range(10**6))

        def failing(*args: Any, calls: Any = calls, fails_at: int = fails_at) -> Any:
            if next(calls) == fails_at:
                raise RuntimeError("out of memory")
            return forward(*args)

        monkeypatch.setattr(last, "forward", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            sampled(engine, jobs)
        engine.clear()
        monkeypatch.undo()
        assert sampled(engine, jobs) == expected
