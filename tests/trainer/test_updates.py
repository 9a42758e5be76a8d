"""Several updates a batch, token weights, corrections, reference and entropy bonus, against plain autograd."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hone.algorithms.advantages import advantages
from hone.algorithms.losses import aggregation_weights, clip, policy_objective
from hone.config.rl import AdvantageConfig, CorrectionConfig, LossConfig, OrchestratorConfig, TrainerConfig
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.loops.parts import batch_use, weighed
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Batch, Sequence, deal, pack, split_minibatches
from hone.trainer.step import Trainer
from hone.types import Counts

CONFIG = tiny_config(InitConfig(layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, intermediate=48))


def sequences(count: int = 6) -> list[Sequence]:
    """Two completions of each prompt, of different lengths, with logprobs near those of a random model."""
    generator = np.random.default_rng(0)
    made = []
    for i in range(count):
        length = 8 + 3 * i
        prompt = 5 + i // 2
        ids = np.concatenate([np.arange(prompt) + i // 2 + 3, generator.integers(3, 90, length - prompt)])
        mask = np.arange(length) >= prompt
        logprobs = np.where(mask, generator.normal(-5.5, 0.3, length), 0.0).astype(np.float32)
        made.append(Sequence(ids, mask, logprobs, advantage=1.0 - 0.5 * i, group=i // 2, sample=i % 2))
    return made


def make_trainer(
    config: LossConfig | None = None,
    correction: CorrectionConfig | None = None,
    advantage: AdvantageConfig | None = None,
    **settings,
) -> Trainer:
    config = config or LossConfig()
    reference = random_decoder(CONFIG, seed=2) if config.kl_coef else None
    objective = policy_objective(config, correction)
    optim = OptimConfig(lr=1e-2, max_norm=1e9)
    orch = OrchestratorConfig(batch_size=6, rollouts_per_example=2, advantage=advantage or AdvantageConfig())
    use = batch_use(TrainerConfig(loss=config, correction=correction or CorrectionConfig(), **settings), orch)
    model, weigh = random_decoder(CONFIG, seed=1), lambda batch: weighed(config, batch)
    return Trainer(model, optim, SchedulerConfig(), 10, objective, reference=reference, use=use, weigh=weigh)


def gradients(trainer: Trainer, batch: Batch, max_tokens: int = 10_000, share: bool = False) -> list[torch.Tensor]:
    """What the first update of a step hands to the optimiser."""
    taken: list[torch.Tensor] = []
    step = trainer.optimizer.step

    def spy(lr: float) -> float:
        if not taken:
            taken.extend(p.grad.clone() for p in trainer.optimizer.params.values() if p.grad is not None)
        return step(lr)

    trainer.optimizer.step = spy  # type: ignore[method-assign]
    trainer.step(trainer.deal(batch, max_tokens, share))
    return taken


def plain(loss_of, aggregation: str, filtered: Counts | None = None, longest: int = 40) -> list[torch.Tensor]:
    """The gradient of Σ_s w_s Σ_t loss_t, sequence by sequence; `loss_of` (sequence, logprobs, entropies) -> losses."""
    model, made = random_decoder(CONFIG, seed=1), sequences()
    weights = aggregation_weights(
        aggregation, [s.num_loss_tokens for s in made], [s.group for s in made], longest, filtered
    )
    for sequence, weight in zip(made, weights.tolist(), strict=True):
        batch = pack([sequence])
        (weight * loss_of(sequence, *token_logprobs(model, batch, batch.loss_indices)).sum()).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def close(one: list[torch.Tensor], other: list[torch.Tensor], rel: float = 2e-5) -> bool:
    assert len(one) == len(other) > 0
    total = math.sqrt(sum(float(t.square().sum()) for t in other))
    return math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(one, other, strict=True))) <= rel * total


def surrogate(sequence: Sequence, logprobs: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    ratio = (logprobs - torch.tensor(sequence.logprobs[sequence.loss_mask])).exp()
    return -torch.minimum(ratio * sequence.advantage, ratio.clamp(0.8, 1.28) * sequence.advantage)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "prompt", "constant"])
@pytest.mark.parametrize(("max_tokens", "share"), [(10_000, False), (10_000, True), (40, True), (20, False)])
def test_aggregation_gives_the_plain_gradient_however_a_step_is_packed(aggregation, max_tokens, share):
    trainer = make_trainer(LossConfig(aggregation=aggregation, count_filtered=True))
    batch = Batch(sequences(), Counts(30, 2, 1), longest=40)
    assert close(gradients(trainer, batch, max_tokens, share), plain(surrogate, aggregation, Counts(30, 2, 1)))


@pytest.mark.parametrize("max_tokens", [10_000, 20])
def test_a_completions_ratio_is_the_same_in_any_packing(max_tokens):
    def gspo(sequence, logprobs, entropies):
        ratio = (logprobs - torch.tensor(sequence.logprobs[sequence.loss_mask])).mean().exp()
        loss = -torch.minimum(ratio * sequence.advantage, ratio.clamp(0.9, 1.1) * sequence.advantage)
        return loss.expand(len(logprobs))

    trainer = make_trainer(LossConfig(type="gspo", eps_low=0.1, eps_high=0.1, aggregation="sequence"))
    assert close(gradients(trainer, Batch(sequences()), max_tokens, True), plain(gspo, "sequence"))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_kl_term_in_the_loss(estimator):
    reference = random_decoder(CONFIG, seed=2)

    def loss(sequence, logprobs, entropies):
        batch = pack([sequence])
        with torch.no_grad():
            delta = token_logprobs(reference, batch, batch.loss_indices)[0]
        delta = logprobs - delta
        kl = delta.square() / 2 if estimator == "k2" else (-delta).exp() - 1 + delta
        return surrogate(sequence, logprobs, entropies) + 0.3 * kl

    trainer = make_trainer(LossConfig(kl_coef=0.3, kl_estimator=estimator))
    assert close(gradients(trainer, Batch(sequences()), 40, True), plain(loss, "token"))


def test_the_ratio_makes_the_gradient_of_k3_that_of_k2_on_the_policys_own_tokens():
    """(1 - exp(-d)) g without it, d g with it, as k2 has; see `kl_estimate`."""
    d = torch.linspace(-1.0, 1.5, 7)
    ref, found = torch.full((7,), -2.0), {}
    batch = replace(
        pack([Sequence(np.arange(8), np.arange(8) > 0, np.concatenate([[0], -2 + d.numpy()]).astype(np.float32))]),
        ref_logprobs=torch.cat([torch.zeros(1), ref]),
    )
    for kind, corrects in (("k3", False), ("k3", True), ("k2", False), ("k1", True)):
        config = LossConfig(kl_coef=1.0, kl_estimator=kind, kl_bias_correction=corrects)
        logprobs = (ref + d).requires_grad_()
        policy_objective(config)(logprobs, torch.zeros(7), batch, batch.loss_indices)[0].backward()
        found[kind, corrects] = (7 * logprobs.grad).tolist()
    assert found["k3", False] == pytest.approx((1 - (-d).exp()).tolist(), abs=1e-5)
    assert found["k3", True] == pytest.approx(d.tolist(), abs=1e-5) == found["k2", False]
    assert found["k1", True] == pytest.approx((1 + d).tolist(), abs=1e-5)


def reference_kl(made: list[Sequence]) -> list[torch.Tensor]:
    """log pi_old - log pi_ref of each completion's tokens, pi_old the sampler's."""
    reference, found = random_decoder(CONFIG, seed=2), []
    for sequence in made:
        batch = pack([sequence])
        with torch.no_grad():
            ref = token_logprobs(reference, batch, batch.loss_indices)[0]
        found.append((torch.tensor(sequence.logprobs[sequence.loss_mask]) - ref).double())
    return found


REWARDS = [1.0, 0.25, 0.5, 0.5, 0.0, 1.0]
"""Of `sequences()`; those of the second prompt are equal."""


@pytest.mark.parametrize("max_tokens", [10_000, 20])
@pytest.mark.parametrize("algorithm", ["rloo", "group_std", "reinforce++"])
def test_the_kl_in_the_reward_comes_before_the_advantages(algorithm, max_tokens):
    """The advantages of r - 0.2 KL by hand, in float64, in place of those of r."""
    kl, coef = reference_kl(sequences()), 0.2
    after: list[torch.Tensor] = []
    if algorithm == "reinforce++":
        keys = {"baseline": "batch", "scale": "token_std"}
        to_go = [r - coef * one.flip(0).cumsum(0).flip(0) for r, one in zip(REWARDS, kl, strict=True)]
        mean, std = torch.cat(to_go).mean(), torch.cat(to_go).std()
        after = [(one - mean) / (std + 1e-4) for one in to_go]
    else:
        keys = {"baseline": "leave_one_out"} if algorithm == "rloo" else {"scale": "group_std"}
        shaped = torch.tensor([r - coef * float(one.sum()) for r, one in zip(REWARDS, kl, strict=True)]).double()
        for i, one in enumerate(kl):
            pair = shaped[2 * (i // 2) : 2 * (i // 2) + 2]
            alone = (
                shaped[i] - shaped[i ^ 1] if algorithm == "rloo" else (shaped[i] - pair.mean()) / (pair.std() + 1e-4)
            )
            after.append(alone.expand(len(one)))
    advantage = AdvantageConfig(**keys)
    lengths = np.array([len(one) for one in kl]).reshape(3, 2)
    how = advantage.baseline, advantage.scale, advantage.std_ddof, advantage.std_eps
    before = advantages(np.array(REWARDS).reshape(3, 2), np.ones((3, 2), dtype=bool), *how, lengths).reshape(-1)
    made = [
        replace(sequence, advantage=float(a), reward=r)
        for sequence, a, r in zip(sequences(), before, REWARDS, strict=True)
    ]

    def loss(sequence, logprobs, entropies):
        own = after[2 * sequence.group + sequence.sample].float()
        return clip(logprobs, torch.tensor(sequence.logprobs[sequence.loss_mask]), own)[0]

    trainer = make_trainer(LossConfig(kl_coef=coef, kl_in="reward", kl_estimator="k1"), advantage=advantage)
    assert close(gradients(trainer, Batch(made), max_tokens, max_tokens == 20), plain(loss, "token"))


def test_the_kl_of_one_task_is_not_compared_with_that_of_another():
    made = [replace(s, advantage=0.0, reward=0.0, pool=s.group // 2) for s in sequences()]
    advantage = AdvantageConfig(baseline="batch")
    trainer = make_trainer(LossConfig(kl_coef=0.2, kl_in="reward", kl_estimator="k1"), advantage=advantage)
    (batch,) = trainer.deal(Batch(made), None, False)
    (found,) = trainer._prepared([batch])
    sums = torch.stack([one.sum() for one in reference_kl(sequences())])
    expected = torch.cat([-0.2 * (sums[:4] - sums[:4].mean()), -0.2 * (sums[4:] - sums[4:].mean())])
    first = torch.tensor(np.cumsum([0, *batch.loss_lengths[:-1]]))
    assert found.advantages[found.loss_indices][first].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "weight"),
    [
        ({"type": "token"}, lambda rho: rho.clamp(max=2)),
        ({"type": "sequence"}, lambda rho: rho.log().sum().exp().clamp(max=2).expand(len(rho))),
        ({"type": "band", "low": 0.8, "high": 1.3}, lambda rho: rho * ((rho >= 0.8) & (rho <= 1.3))),
        (
            {"type": "geometric", "low": 0.9, "high": 1.1},
            lambda rho: (0.9 <= rho.log().mean().exp() <= 1.1) * torch.ones(len(rho)),
        ),
    ],
)
def test_a_correction_weighs_by_the_trainer_before_the_update_over_the_sampler(settings, weight):
    def loss(sequence, logprobs, entropies):
        old = logprobs.detach()
        rho = (old - torch.tensor(sequence.logprobs[sequence.loss_mask])).exp()
        return -(logprobs - old).exp() * sequence.advantage * weight(rho)

    trainer = make_trainer(LossConfig(), CorrectionConfig(**settings))
    assert close(gradients(trainer, Batch(sequences()), 40, True), plain(loss, "token"))


def test_a_token_without_a_finite_logprob_is_dropped_and_counted():
    made = sequences()
    broken = made[3].logprobs.copy()
    broken[-2:] = [-np.inf, np.nan]
    made[3] = replace(made[3], logprobs=broken)

    def loss(sequence, logprobs, entropies):
        kept = torch.ones(len(logprobs))
        if (sequence.group, sequence.sample) == (1, 1):
            kept[-2:] = 0
        return surrogate(sequence, logprobs, entropies) * kept

    assert close(gradients(make_trainer(), Batch(made), 40, True), plain(loss, "token"))
    metrics = make_trainer().step(deal(made, 40))
    tokens = sum(s.num_loss_tokens for s in made)
    assert metrics["dropped"] == pytest.approx(2 / tokens) and math.isfinite(metrics["logprob_gap/max"])


def test_updates_of_minibatches_are_those_of_steps_on_parts_with_the_old_logprobs_fixed():
    """Two passes of three minibatches; the ratio's old policy stays the sampler's."""
    once = make_trainer(updates_per_batch=2, minibatches=3)
    metrics = once.step(once.deal(Batch(sequences()), 40, True))
    parts = split_minibatches(sequences(), 3)
    assert [[(s.group, s.sample) for s in part] for part in parts] == [[(g, 0), (g, 1)] for g in range(3)]
    total = sum(s.num_loss_tokens for s in sequences())
    assert all(s.weight == pytest.approx(3 / total) for part in parts for s in part)
    by_hand, norms = make_trainer(), []
    for _ in range(2):
        for part in parts:
            norms.append(by_hand.step(deal(part, 40, share_prompts=True))["grad_norm"])
    assert all(map(torch.equal, once.model.parameters(), by_hand.model.parameters()))
    assert metrics["grad_norm"] == pytest.approx(sum(norms) / 6)
    assert (once.version, metrics["optimizer/skipped"]) == (1, 0.0)


def test_with_a_correction_the_old_policy_is_the_trainers_before_the_first_update():
    seen: list[torch.Tensor] = []

    def record(logprobs, old, advantages, lengths):
        seen.append(old.clone())
        return -advantages * logprobs

    trainer = make_trainer(correction=CorrectionConfig(type="token"), updates_per_batch=3)
    trainer.objective = policy_objective(LossConfig(), CorrectionConfig(type="token"), custom=record)
    batch = pack(sequences())
    with torch.no_grad():
        before = token_logprobs(trainer.model, batch, batch.loss_indices)[0]
    trainer.step(trainer.deal(Batch(sequences()), None, False))
    assert len(seen) == 3 and all(torch.equal(old, seen[0]) for old in seen)
    assert seen[0].tolist() == pytest.approx(before.tolist(), abs=1e-6)


def test_an_interrupt_comes_before_the_first_update_or_not_at_all():
    trainer = make_trainer(updates_per_batch=2, minibatches=3)
    asked: list[int] = []
    trainer.interrupt = lambda: asked.append(trainer.optimizer.adamw.state.__len__())
    trainer.step(trainer.deal(Batch(sequences()), 40, True))
    assert asked and set(asked) == {0}, "the optimiser has no state before its first update"


def test_the_reference_follows_every_other_step_and_is_in_the_checkpoint():
    trainer = make_trainer(LossConfig(kl_coef=0.1, reference_interval=2))
    initial = [p.clone() for p in trainer.reference.parameters()]
    batches = trainer.deal(Batch(sequences()), None, True)
    trainer.step(batches)
    assert all(map(torch.equal, trainer.reference.parameters(), initial))
    trainer.step(batches)
    assert all(map(torch.equal, trainer.reference.parameters(), trainer.model.parameters()))
    saved = {kind: {k: v.clone() for k, v in tensors.items()} for kind, tensors in trainer.tensors().items()}
    resumed = make_trainer(LossConfig(kl_coef=0.1, reference_interval=2))
    resumed.load_tensors(saved, 2)
    assert trainer.step(batches) == resumed.step(batches)
    assert all(map(torch.equal, trainer.model.parameters(), resumed.model.parameters()))


def test_the_gap_to_the_sampler_is_that_before_the_first_update():
    """Of the first minibatch's tokens: after its update the policy is another one."""
    trainer = make_trainer(updates_per_batch=2, minibatches=3)
    metrics = trainer.step(trainer.deal(Batch(sequences()), 40, True))
    alone = make_trainer().step(deal(split_minibatches(sequences(), 3)[0], 40, share_prompts=True))
    assert metrics["logprob_gap/mean"] == pytest.approx(alone["logprob_gap/mean"])
    assert metrics["logprob_gap/max"] == alone["logprob_gap/max"]
