import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_updates import CONFIG, sequences

from hone.algorithms.losses import policy_objective, sft_objective
from hone.config.rl import LossConfig
from hone.config.shared import OptimConfig, SchedulerConfig
from hone.model.presets import random_decoder
from hone.trainer.packing import Sequence, deal, pack
from hone.trainer.step import Trainer


def make_trainer(objective=sft_objective) -> Trainer:
    return Trainer(random_decoder(CONFIG, seed=1), OptimConfig(lr=1e-2), SchedulerConfig(), 10, objective)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in trainer.model.parameters()])


def test_no_micro_batches_skips_the_update_but_counts_the_step():
    trainer = make_trainer()
    before = weights(trainer)
    assert trainer.step([]) == {"lr": 1e-2, "optimizer/skipped": 1.0}
    assert trainer.version == 1 and torch.equal(weights(trainer), before)


def test_a_gradient_that_is_not_finite_skips_the_update():
    trainer = make_trainer(lambda logprobs, entropies, batch, indices: (logprobs.sum() * float("inf"), {}))
    before = weights(trainer)
    assert trainer.step([pack(sequences())])["optimizer/skipped"] == 1.0 and torch.equal(weights(trainer), before)
    assert all(p.grad is None for p in trainer.model.parameters())


def test_bf16_weights_move_by_updates_below_their_resolution():
    """At lr 1e-5 a bf16 weight of 0.02 cannot take one step; the fp32 master adds them up."""
    model = random_decoder(CONFIG, seed=1, precision="bf16")
    trainer = Trainer(model, OptimConfig(lr=1e-5), SchedulerConfig(), 100, sft_objective)
    before = weights(trainer)
    for _ in range(20):
        trainer.step([pack(sequences())])
    assert (weights(trainer) != before).float().mean() > 0.5
    masters = torch.cat([m.detach().flatten() for m in trainer.optimizer.masters.values()])
    assert (masters - before).abs().mean() > 1e-4


def test_the_ratio_of_stale_tokens_is_bounded_also_where_they_are_to_be_unlearned():
    batch = pack(sequences())
    indices = batch.loss_indices
    batch = replace(batch, advantages=torch.full_like(batch.advantages, -1.0))
    logprobs = batch.sampling_logprobs[indices] + math.log(5)  # five times as likely as when they were sampled
    losses = {
        name: float(policy_objective(config, stale=stale)(logprobs, logprobs, batch, indices)[0])
        for name, config, stale in (
            ("fresh", LossConfig(), False),
            ("stale", LossConfig(), True),
            ("set", LossConfig(dual_clip=4.0), True),
        )
    }
    assert losses == pytest.approx({"fresh": 5.0, "stale": 3.0, "set": 4.0}, rel=1e-5)


def zipf_tokens(count: int, length: int) -> list[Sequence]:
    """Sequences of tokens as frequent as words are: the r-th with probability ~ 1/r."""
    ranks = np.arange(1, CONFIG.vocab_size + 1)
    random = np.random.default_rng(0)
    mask = np.arange(length) > 0
    return [
        Sequence(random.choice(CONFIG.vocab_size, length, p=1 / ranks / np.sum(1 / ranks)), mask) for _ in range(count)
    ]


def gradients(trainer: Trainer, micro_batches) -> dict[str, torch.Tensor]:
    """What one step hands to the optimiser."""
    found = {}
    optimizer = trainer.optimizer
    optimizer.adamw.step = lambda: found.update({name: m.grad.clone() for name, m in optimizer.masters.items()})
    trainer.step(micro_batches)
    return found


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def test_gradients_of_bf16_weights_are_summed_in_fp32():
    """Of the embedding over 8,192 tokens, most of which are the same few; and of all weights over 64 micro-batches."""
    config = replace(CONFIG, tie_word_embeddings=False)

    def trainer(precision):
        model = random_decoder(config, seed=1, precision=precision)
        for param in model.parameters():
            param.data = param.data.bfloat16().to(param.dtype)
        return Trainer(model, OptimConfig(lr=1e-2, max_norm=1e9), SchedulerConfig(), 10, sft_objective)

    given = zipf_tokens(64, 128)
    exact = gradients(trainer("fp32"), deal(given, 10_000))
    one = gradients(trainer("bf16"), deal(given, 10_000))
    many = gradients(trainer("bf16"), deal(given, 128))
    for found in (one, many):  # 0.05 where either is summed in bf16
        assert max(error(found[name], exact[name]) for name in exact) < 0.008
