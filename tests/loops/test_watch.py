"""What a verdict does to a run: shown once, written down, an end."""

from __future__ import annotations

import io

import pytest

from hone.algorithms.losses import policy_objective
from hone.config.rl import GapConfig, RLConfig
from hone.environments import load_environment
from hone.errors import Halt
from hone.inference.engine import Engine
from hone.loops.canary import Canary, GapWatch, band_from_config
from hone.loops.colocated import EnginePolicy
from hone.model.chat import load_renderer
from hone.model.presets import random_decoder, tiny_config
from hone.runs.display import make_display
from hone.runs.progress import Progress
from hone.runs.writer import RunWriter
from hone.trainer.step import Trainer


@pytest.fixture
def make(tmp_path):
    """Measures and judges the canary of a model that samples in this precision; the watch, what it prints, the run."""

    def call(precision: str = "fp32", **gap) -> tuple:
        out = io.StringIO()
        config = RLConfig(output_dir=tmp_path / "run", precision="fp32", display="plain", gap=GapConfig(**gap))
        writer = RunWriter.start(config, "rl", ["rl"], observers=[make_display("plain", Progress("rl", 100), out)])
        model = random_decoder(tiny_config(), seed=1)
        optim, scheduler, loss = config.trainer.optim, config.trainer.scheduler, config.trainer.loss
        trainer = Trainer(model, optim, scheduler, 3, policy_objective(loss))
        renderer = load_renderer("hone/tiny")
        examples = load_environment("reverse-text").split("train")[:4]
        sampler = model if precision == "fp32" else random_decoder(tiny_config(), seed=1, precision=precision)
        policy = EnginePolicy(Engine(sampler), renderer)
        canary = Canary(policy, trainer, renderer, examples, seed=0, seq_len=64)
        watch = GapWatch(band_from_config(config, 4), config.gap.action, writer)
        return (lambda version: watch.published(version, canary.measure())), watch, out, writer

    return call


def test_a_warning_is_shown_once_until_it_changes(make):
    published, watch, out, writer = make("bf16", stop=1)
    with writer:
        assert [published(version)["canary/verdict"] for version in range(3)] == [1.0] * 3
        for step, mean in enumerate((1e-3, 1e-3, 1e-7, 1e-3)):
            watch.trained(step, {"logprob_gap/mean": mean, "logprob_gap/max": mean})
    assert out.getvalue().count("Warning: sampler and trainer disagree at version") == 3


def test_what_is_far_beyond_ends_the_run(make):
    published, watch, _, writer = make(stop=1e-12)
    with writer:
        with pytest.raises(Halt, match=r"disagree at version 4 by .* the run stops beyond 1e-12") as halt:
            published(4)
        assert halt.value.metrics["canary/verdict"] == 2.0
        with pytest.raises(Halt, match="disagree at version 4 by 1e-07"):
            watch.trained(4, {"logprob_gap/mean": 1e-7, "logprob_gap/max": 1e-6})
