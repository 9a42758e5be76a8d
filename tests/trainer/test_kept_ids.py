"""The ids that tokens were sampled among, on their way to the head: packed, sent, and renormalised over."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hone.algorithms.losses import policy_objective
from hone.config.rl import LossConfig
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.logprobs import token_hidden, token_logprobs
from hone.trainer.packing import Sequence, deal, pack
from hone.trainer.step import BatchUse, Trainer
from hone.types import Columns, Ragged, joined, ragged, split, where

CONFIG = tiny_config(InitConfig(layers=2, hidden=48, heads=4, kv_heads=2, head_dim=16, intermediate=64))
WAY = SamplingParams(temperature=0.9, top_p=0.9, top_k=20, min_p=0.05, ignore_eos=True, return_kept_ids=True)


def model():
    decoder = random_decoder(CONFIG, seed=2)
    with torch.no_grad():
        decoder.embed.mul_(6)
    decoder.refresh()
    return decoder


def sampled(decoder) -> list[Sequence]:
    """Two groups of three completions."""
    prompts = [(5, 6, 7), (9, 8, 7, 6, 5)]
    jobs = [Job(prompts[i // 3], i, 6 + i) for i in range(6)]
    made = []
    for i, (job, completion) in enumerate(zip(jobs, Engine(decoder).run(jobs, WAY), strict=True)):
        before, count = len(job.prompt), len(completion.token_ids)
        assert completion.candidates is not None
        made.append(
            Sequence(
                np.array([*job.prompt, *completion.token_ids]),
                np.repeat([False, True], [before, count]),
                np.array([0.0] * before + completion.logprobs, dtype=np.float32),
                *(1.0 - 0.4 * i, i // 3, i % 3),
                columns=joined([(before, {}), (count, {"candidates": completion.candidates})]),
            )
        )
    return made


def sets(columns: Columns) -> list[list[int]]:
    kept = ragged(columns, "candidates")
    assert kept is not None
    return [part.tolist() for part in np.split(kept.values, np.cumsum(kept.counts)[:-1])]


def test_a_token_outside_of_its_set_is_found():
    kept = Ragged.of([[], [3, 4], [5]])
    assert kept.holds(np.array([9, 4, 5]))
    assert not kept.holds(np.array([9, 4, 6])) and not kept.holds(np.array([9, 5, 5]))
    columns = {"candidates": kept, "dense": np.array([0.5, 1.5, 2.5], dtype=np.float32)}
    assert sets(where(columns, np.array([True, False, True]))) == [[], [5]]
    assert joined([(2, {}), (3, {})]) == {}
    longer = joined([(1, {}), (3, columns)])
    assert sets(longer) == [[], [], [3, 4], [5]] and longer["dense"].tolist() == [0.0, 0.5, 1.5, 2.5]
    first, second = split(longer, [2, 2])
    assert sets(first) == [[], []] and sets(second) == [[3, 4], [5]] and second["dense"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize("max_tokens", [10_000, 25])
def test_a_first_update_has_the_ratio_1_and_the_gradient_of_plain_autograd_in_float64(max_tokens):
    """The policy gradient at ratio 1 by hand, on a softmax over the kept ids."""
    decoder = model()
    made = sampled(decoder)
    batch = pack(made)
    hidden = token_hidden(decoder, batch, batch.loss_indices).double()
    logits = hidden @ decoder.head_weight.double().T / WAY.temperature
    rows = [logits[row, kept].log_softmax(-1) for row, kept in enumerate(sets(batch.columns))]
    targets = batch.token_ids[batch.loss_indices].tolist()
    places = [kept.index(target) for kept, target in zip(sets(batch.columns), targets, strict=True)]
    logprobs = torch.stack([row[place] for row, place in zip(rows, places, strict=True)])
    entropy = torch.stack([-(row.exp() * row).sum() for row in rows])
    advantages = batch.advantages[batch.loss_indices].double()
    ratio = (logprobs - batch.sampling_logprobs[batch.loss_indices]).exp()
    assert (ratio - 1).abs().max() < 1e-5
    (-(ratio * advantages).mean() - 0.01 * entropy.mean()).backward()
    right = {name: p.grad.clone() for name, p in decoder.named_parameters()}
    decoder.zero_grad()

    objective = policy_objective(LossConfig(entropy_coef=0.01))
    trainer = Trainer(decoder, OptimConfig(max_norm=1e9), SchedulerConfig(), 1, objective, temperature=WAY.temperature)
    found: dict[str, torch.Tensor] = {}
    masters = trainer.optimizer.masters
    trainer.optimizer.adamw.step = lambda: found.update({name: m.grad.clone() for name, m in masters.items()})
    metrics = trainer.step(deal(made, max_tokens, share_prompts=True))
    assert metrics["logprob_gap/max"] < 1e-5 and metrics["clipped"] == 0
    assert metrics["entropy"] == pytest.approx(float(entropy.detach().mean()), rel=1e-5)
    for name, gradient in right.items():
        assert (found[name] - gradient).norm() / gradient.norm() < 2e-5, name


def test_the_old_policy_and_the_reference_are_renormalised_over_the_same_ids():
    decoder, reference = model(), random_decoder(CONFIG, seed=5)
    objective = policy_objective(LossConfig(kl_coef=0.1))
    use = BatchUse(updates_per_batch=2, keeps_old=True)
    trainer = Trainer(decoder, OptimConfig(), SchedulerConfig(), 1, objective, WAY.temperature, reference, use=use)
    trainer.record_tokens = True
    batch = pack(sampled(decoder))
    (prepared,) = trainer._prepared([batch])
    assert prepared.old_logprobs is not None and prepared.ref_logprobs is not None
    assert (prepared.old_logprobs - batch.sampling_logprobs)[batch.loss_indices].abs().max() < 1e-5
    with torch.no_grad():
        hidden = token_hidden(reference, batch, batch.loss_indices).double()
        logits = hidden @ reference.head_weight.double().T / WAY.temperature
    for row, (kept, index) in enumerate(zip(sets(batch.columns), batch.loss_indices.tolist(), strict=True)):
        right = logits[row, kept].log_softmax(-1)[kept.index(int(batch.token_ids[index]))]
        assert float(prepared.ref_logprobs[index]) == pytest.approx(float(right), abs=1e-5)
    right_logprobs = token_logprobs(decoder, batch, batch.loss_indices, WAY.temperature)[0]
    trainer.step([batch])
    stats = trainer.token_stats()
    assert stats is not None and np.array_equal(stats.logprobs, right_logprobs.detach().numpy())
