"""Each cause of a gap is made for real, with real samplers and a real trainer, and gets its verdict."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from hone.algorithms.gap import Gap, Verdict, band_of
from hone.algorithms.losses import policy_objective
from hone.config.rl import LossConfig
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.environments import load_environment
from hone.inference.engine import Engine
from hone.loops.canary import Canary
from hone.loops.colocated import EnginePolicy
from hone.model.chat import load_renderer
from hone.model.decoder import Decoder
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.packing import Sequence as Packed
from hone.trainer.packing import pack
from hone.trainer.step import Trainer

CONFIG = tiny_config(InitConfig(layers=2, hidden=48, heads=4, kv_heads=2, head_dim=16, intermediate=64))
RENDERER = load_renderer("hone/tiny")
EXAMPLES = load_environment("reverse-text").split("train")[:8]
BAND = band_of("hone", "fp32", 4)


def peaked(precision: str = "fp32") -> Decoder:
    """A model whose tokens have clearly different logprobs."""
    model = random_decoder(CONFIG, 2, precision)
    with torch.no_grad():
        model.embed.mul_(8)
    model.refresh()
    return model


def trainer_of(model: Decoder) -> Trainer:
    return Trainer(model, OptimConfig(lr=3e-3), SchedulerConfig(), 10, policy_objective(LossConfig()), 1.0)


def update(trainer: Trainer) -> None:
    """A real update, on tokens of the prompts."""
    ids = np.array([token for example in EXAMPLES for token in RENDERER.prompt_ids(example.prompt)])
    trainer.step([pack([Packed(ids, np.arange(len(ids)) > 0, np.full(len(ids), -3.0, np.float32), advantage=1.0)])])


def canary_of(policy: EnginePolicy, trainer: Trainer, seed: int = 5, seq_len: int = 96) -> Canary:
    return Canary(policy, trainer, RENDERER, EXAMPLES, seed, seq_len)


def published(canary: Canary) -> Gap:
    canary.policy.load(canary.trainer.version)
    return canary.measure()


@pytest.mark.parametrize("precision", ["fp32", "bf16_linear", "bf16"])
def test_one_model_on_both_sides_is_in_the_band_after_every_update(precision):
    model = peaked(precision)
    trainer = trainer_of(model)
    policy = EnginePolicy(Engine(model, prefix_bytes=2**24), RENDERER, lambda: trainer.version)
    canary = canary_of(policy, trainer)
    for _ in range(3):
        assert band_of("hone", precision, model.config.num_layers).verdict(published(canary)) == Verdict.OK
        fresh = canary_of(EnginePolicy(Engine(model, prefix_bytes=2**24), RENDERER), trainer)
        fresh.measure()
        assert fresh.measure() == canary.measure(), "nothing that came before is in the numbers"
        update(trainer)


class Unscored(EnginePolicy):
    """A sampler that can't score given tokens."""

    def score(self, sequences, temperature):
        return [[float("nan")] * (len(ids) - 1) for ids in sequences]


class Forgetless(EnginePolicy):
    """A sampler that keeps the prefixes of older weights: what it scores is right, what it samples is not."""

    def load(self, version, path=None):
        self.engine.version = version


@pytest.mark.parametrize(
    ("kind", "own_weights", "expected"),
    [
        (EnginePolicy, True, Verdict.STOP),
        (Unscored, True, Verdict.STOP),
        (Forgetless, False, Verdict.STOP),
        (EnginePolicy, False, Verdict.OK),
    ],
    ids=["stale weights", "stale weights unscored", "stale cache", "fresh"],
)
def test_what_is_stale_after_an_update(kind, own_weights, expected):
    model = peaked()
    trainer = trainer_of(model)
    engine = Engine(copy.deepcopy(model) if own_weights else model, prefix_bytes=2**24)
    canary = canary_of(kind(engine, RENDERER, lambda: trainer.version), trainer)
    assert BAND.verdict(published(canary)) == Verdict.OK
    update(trainer)
    assert BAND.verdict(published(canary)) == expected
