"""What a step keeps of each token, against transformers' logits of the same tokens."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hone.algorithms.losses import policy_objective
from hone.config.rl import LossConfig
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.model.hf import save_model
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.packing import Sequence, deal
from hone.trainer.step import Trainer

CONFIG = tiny_config(InitConfig(layers=2, hidden=32, heads=2, kv_heads=1, head_dim=16, intermediate=48))
TEMPERATURE = 0.7


def sequences() -> list[Sequence]:
    """Three completions for each of three prompts, some of several turns: loss on two stretches with a gap between."""
    made = []
    for i in range(9):
        draw, sample = 40 - i // 3, i % 3
        prompt = np.random.default_rng(draw).integers(3, 90, 5 + draw % 3)
        ids = np.concatenate([prompt, np.random.default_rng(i).integers(3, 90, 6 + 2 * i)])
        mask = np.arange(len(ids)) >= len(prompt)
        mask[len(prompt) + 2 : len(prompt) + 2 + i % 4] = False
        logprobs = np.where(mask, -4.0, 0.0).astype(np.float32)
        made.append(Sequence(ids, mask, logprobs, 1.0 - 0.4 * sample, draw, sample))
    return made


def trainer(record: bool = True) -> Trainer:
    objective = policy_objective(LossConfig())
    model = random_decoder(CONFIG, seed=1)
    made = Trainer(model, OptimConfig(lr=1e-2), SchedulerConfig(), 10, objective, TEMPERATURE)
    made.record_tokens = record
    return made


@pytest.mark.parametrize(("max_tokens", "share"), [(10_000, False), (40, True)])
def test_entropies_and_logprobs_are_those_of_the_weights_before_the_update(max_tokens, share, tmp_path: Path):
    from transformers import AutoModelForCausalLM

    made = trainer()
    save_model(made.model, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    made.step(deal(sequences(), max_tokens, share_prompts=share))
    stats = made.token_stats()
    assert stats is not None and stats.entropies.dtype == np.float16 and stats.logprobs.dtype == np.float32
    found = stats.by_completion()
    assert list(found) == [(s.group, s.sample) for s in sequences()]
    for s in sequences():
        with torch.no_grad():
            logits_TV = theirs(torch.from_numpy(s.token_ids)[None]).logits[0, :-1] / TEMPERATURE
        distribution = torch.distributions.Categorical(logits=logits_TV)
        predicted = s.loss_mask[1:]
        entropies, logprobs = found[s.group, s.sample]
        wanted = distribution.log_prob(torch.from_numpy(s.token_ids[1:])).numpy()[predicted]
        np.testing.assert_allclose(logprobs, wanted, atol=1e-5)
        np.testing.assert_allclose(entropies, distribution.entropy().numpy()[predicted], rtol=1e-3)
        assert len(entropies) == s.num_loss_tokens


def test_recording_changes_no_bit_of_a_step():
    with_it, without = trainer(), trainer(record=False)
    for _ in range(3):
        batch = deal(sequences(), 60, share_prompts=True)
        assert with_it.step(batch) == without.step(batch)
        assert with_it.fingerprint() == without.fingerprint()
    assert without.token_stats() is None
