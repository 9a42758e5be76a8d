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


def make_trainer(objective=sft_objective, precision="fp32", **kwargs) -> Trainer:
    model = random_decoder(CONFIG, seed=1, precision=precision)
    return Trainer(model, OptimConfig(lr=1e-2), SchedulerConfig(), 10, objective, **kwargs)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("objective", [sft_objective, policy_objective(LossConfig())])
def test_splitting_a_batch_changes_neither_loss_nor_gradient(objective):
    whole, split = make_trainer(objective), make_trainer(objective)
    one = whole.step(deal(sequences(), 10_000))
    many = split.step(deal(sequences(), 20))
    assert many["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert many["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-5)
    assert many["entropy"] == pytest.approx(one["entropy"], rel=1e-5)


def test_sft_loss_is_the_mean_nll_of_a_plain_forward():
    trainer = make_trainer()
    total, count = 0.0, 0
    for s in sequences():
        batch = pack([Sequence(s.token_ids, s.loss_mask)])
        from hone.model.attention import PackedAttention

        with torch.no_grad():
            hidden = trainer.model.hidden(batch.token_ids, batch.positions, PackedAttention([len(s)]))
            logprobs = trainer.model.logits(hidden).log_softmax(-1)
        for t in np.flatnonzero(s.loss_mask):
            total -= float(logprobs[t - 1, s.token_ids[t]])
            count += 1
    assert trainer.step(deal(sequences(), 64))["loss"] == pytest.approx(total / count, rel=1e-5)


def test_the_host_waits_for_a_gpu_twice_a_step_however_many_micro_batches_it_has(monkeypatch):
    """Once for the statistics of all, once for the gradient's norm."""
    reads: list[str] = []

    def counted(name, read):
        return lambda tensor, *args: (reads.append(name), read(tensor, *args))[1]

    for name in ("item", "tolist", "numpy", "cpu", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    trainer = make_trainer(policy_objective(LossConfig(kl_coef=0.1)), reference=random_decoder(CONFIG, seed=2))
    trainer.record_tokens = True
    for max_tokens in (10_000, 40, 20):
        batches = deal(sequences(), max_tokens, share_prompts=True)
        reads.clear()
        trainer.step(batches)
        # `numpy` is part of `tolist`, and `__int__` of the rotary table's on a CPU.
        assert [name for name in reads if name not in ("numpy", "__int__")] == ["__float__", "tolist"]


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


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_tensors_restore_the_trainer_bit_for_bit(precision):
    straight = make_trainer(precision=precision)
    straight.step([pack(sequences())])
    saved = {group: {k: v.clone() for k, v in named.items()} for group, named in straight.tensors().items()}
    resumed = make_trainer(precision=precision)
    resumed.load_tensors(saved, version=1)
    assert straight.step([pack(sequences())]) == resumed.step([pack(sequences())])
    assert torch.equal(weights(straight), weights(resumed))


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


def test_temperature_divides_the_logits_of_the_ratio():
    """At temperature 2 the trainer's logprobs are those of softmax(logits / 2): the gap to a sampler at T=2 is zero."""
    from hone.inference.engine import Engine
    from hone.inference.types import SamplingParams

    model = random_decoder(CONFIG, seed=3)
    prompt = [5, 6, 7, 8]
    completion = Engine(model).generate([prompt], SamplingParams(max_tokens=12, temperature=2.0, ignore_eos=True))[0][0]
    mask = np.array([False] * 4 + [True] * 12)
    logprobs = np.array([0.0] * 4 + completion.logprobs, dtype=np.float32)
    sequence = Sequence(np.array(prompt + completion.token_ids), mask, logprobs, advantage=1.0)
    gap = {
        t: Trainer(model, OptimConfig(), SchedulerConfig(), 1, policy_objective(LossConfig()), temperature=t)
        for t in (1.0, 2.0)
    }
    assert gap[2.0].step([pack([sequence])])["logprob_gap/max"] <= 1e-5
    assert gap[1.0].step([pack([sequence])])["logprob_gap/max"] > 1e-3


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
