"""Contracts 1 to 4 where sampling cuts the distribution, a step has several updates, and the reference follows.

Changing what is compared here is a decision to report.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import states
import torch
from recipes import STEPS, Recipe
from transformers import LogitsProcessorList, MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hone.model.attention import PackedAttention
from hone.model.hf import load_model
from hone.model.tokenizer import build_tiny_tokenizer


@pytest.fixture(scope="module")
def recipe(cook) -> Recipe:
    return cook("cut", "fp32")


def test_the_kept_ids_are_those_of_transformers_and_the_logprobs_are_of_them(recipe, warm_model):
    model, tokenizer = load_model(str(warm_model), precision="fp32"), build_tiny_tokenizer()
    warpers = LogitsProcessorList([TopKLogitsWarper(20), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)])
    rows = pq.read_table(recipe.unbroken / "rollouts" / "step_000000.parquet").to_pylist()
    stopped = 0
    for row in rows:
        ids, mask = np.array(row["token_ids"]), np.array(row["sampled_mask"])
        with torch.no_grad():
            hidden = model.hidden(torch.tensor(ids), torch.arange(len(ids)), PackedAttention([len(ids)]))
            cut = warpers(None, model.logits(hidden)[:-1])
        counts, kept = np.array(row["kept_counts"]), iter(row["kept_ids"])
        assert not counts[~mask].any() and 1 <= counts[mask].min() <= counts[mask].max() <= 20
        for place in np.flatnonzero(mask):
            assert [next(kept) for _ in range(counts[place])] == cut[place - 1].isfinite().nonzero().flatten().tolist()
            logprob = cut[place - 1].double().log_softmax(-1)[ids[place]]
            assert row["logprobs"][place] == pytest.approx(float(logprob), abs=1e-5)
        text = tokenizer.decode(ids[mask].tolist(), skip_special_tokens=True)
        assert row["text"] == text.partition("a")[0]
        if "a" in text:
            stopped += 1
            assert text.index("a") == len(text) - 1 and row["stop_reason"] == "stop"
    assert stopped > 0


def test_sampler_and_trainer_agree_and_the_run_trains(recipe):
    lines = states.lines(recipe.unbroken / "metrics.jsonl")
    steps = [line for line in lines if "logprob_gap/max" in line]
    assert len(steps) >= STEPS - 2 and all(line["grad_norm"] > 0 for line in steps)
    assert all(line["logprob_gap/max"] <= 1e-5 for line in steps)
    assert all(line["canary/gap/max"] <= 1e-5 for line in lines)
    assert all(1 < line["completion/kept_ids/mean"] < 20 for line in steps)
    assert all(0 < line["entropy"] < np.log(20) for line in steps)


def test_killed_and_resumed_equals_never_killed(recipe, tmp_path):
    recipe.stopped_late_and_resumed(tmp_path)


@pytest.mark.needs("reproduce")
def test_it_is_verified_and_replayed(recipe, tmp_path):
    recipe.rebuilt(tmp_path)
    certificate = json.loads((tmp_path / "copied.verify.json").read_text())
    assert certificate["verdict"] == "verified" and len(certificate["steps"]) == STEPS
