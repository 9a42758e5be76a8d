"""Logits that are not finite end their own job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hone import rng
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams, Token
from hone.model.decoder import Decoder
from hone.model.presets import random_decoder, tiny_config

FREE = SamplingParams(ignore_eos=True)
BAD = 99
"""A token that the tests make harmful."""


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


def job(i: int, prompt: tuple[int, ...] = (70, 71), params: SamplingParams = FREE) -> Job:
    return Job(prompt, rng.key(0, "failures", i), 6, replace(params))  # each job is a request of its own


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


@pytest.mark.parametrize("runner", [{}, {"batch_invariant": True}, {"cuda_graphs": True}], ids=str)
def test_logits_that_are_not_finite_end_their_own_sample(model: Decoder, runner: dict[str, Any]) -> None:
    jobs = [job(0), job(1, (70, BAD)), job(2, (71,), SamplingParams(temperature=0.7, top_k=5, top_logprobs=2))]
    first, bad, last = sampled(Engine(model, **runner), jobs)
    assert [first, last] == undisturbed(model, [jobs[0], jobs[2]])
    assert "logits are not finite" in bad
