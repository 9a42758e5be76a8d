"""Computing a prompt once for its group changes neither loss, statistics nor gradients."""

import numpy as np
import pytest
import torch

from hone.algorithms.losses import policy_objective
from hone.config.rl import LossConfig
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.packing import Sequence, deal
from hone.trainer.step import Trainer

CONFIG = tiny_config(InitConfig(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48))


def groups(shape: list[tuple[int, list[int]]], turns: bool = False) -> list[Sequence]:
    """One group per (prompt length, completion lengths); with `turns`, a gap in each longer completion's loss mask."""
    generator = np.random.default_rng(0)
    made = []
    for group, (prompt_length, lengths) in enumerate(shape):
        prompt = generator.integers(3, 90, prompt_length)
        for sample, length in enumerate(lengths):
            ids = np.concatenate([prompt, generator.integers(3, 90, length)])
            mask = np.arange(len(ids)) >= prompt_length
            if turns and length > 4:
                mask[prompt_length + 2 : prompt_length + 4] = False
            logprobs = np.where(mask, generator.normal(-4.5, 0.3, len(ids)), 0.0).astype(np.float32)
            made.append(Sequence(ids, mask, logprobs, float(generator.normal()), group=group, sample=sample))
    return made


SHAPES = {
    "equal": [(6, [5, 5, 5]), (6, [5, 5, 5])],
    "unequal": [(3, [9, 1, 4]), (17, [2, 30, 8, 8]), (1, [6, 7])],
    "groups of one": [(4, [5]), (9, [3, 12]), (4, [6])],
}


def gradients_and_metrics(sequences: list[Sequence], max_tokens: int, share: bool, precision: str = "fp32"):
    model = random_decoder(CONFIG, seed=1, precision=precision)
    objective = policy_objective(LossConfig(kl_coef=0.1))
    reference = random_decoder(CONFIG, seed=2)
    trainer = Trainer(model, OptimConfig(), SchedulerConfig(), 10, objective, temperature=0.8, reference=reference)
    batches = deal(sequences, max_tokens, share_prompts=share)
    for batch in batches:
        trainer._accumulate(batch)
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return gradients, trainer.step(batches), sum(len(batch) for batch in batches)


@pytest.mark.parametrize(("max_tokens", "turns"), [(10_000, False), (40, True), (20, True)])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sharing_changes_neither_statistics_nor_gradients(shape, turns: bool, max_tokens: int):
    sequences = groups(shape, turns)
    expected, expected_metrics, tokens = gradients_and_metrics(sequences, 10_000, share=False)
    actual, metrics, fewer = gradients_and_metrics(sequences, max_tokens, share=True)
    assert fewer < tokens or max_tokens == 20
    assert metrics == pytest.approx(expected_metrics, rel=1e-5, abs=1e-7)
    assert float((actual - expected).norm() / expected.norm()) < 1e-5
    assert "kl" in metrics and "clipped" in metrics and metrics["logprob_gap/max"] > 0.1
