"""Each cause of a gap is made for real, with real samplers and a real trainer, and has to be found and named."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hone.algorithms.gap import BANDS, Verdict
from hone.config.rl import LossConfig
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.environments import load_environment
from hone.inference.engine import Engine
from hone.model.chat import load_renderer
from hone.model.decoder import Decoder
from hone.model.hf import save_model
from hone.model.presets import random_decoder, tiny_config
from hone.orchestrator.canary import Canary, Cause, Diagnosis
from hone.orchestrator.colocated import EnginePolicy
from hone.trainer.objectives import policy_objective
from hone.trainer.packing import Sequence as Packed
from hone.trainer.packing import pack
from hone.trainer.step import Trainer
from hone.types import Trajectory

CONFIG = tiny_config(InitConfig(layers=2, hidden=48, heads=4, kv_heads=2, head_dim=16, intermediate=64))
BOS = 2
RENDERER = load_renderer("hone/tiny")
EXAMPLES = load_environment("reverse-text").split("train")[:8]
PRECISIONS = ("fp32", "bf16_linear", "bf16")


def peaked(precision: str = "fp32", seed: int = 2, config=CONFIG) -> Decoder:
    """A model whose tokens have clearly different logprobs."""
    model = random_decoder(config, seed, precision)
    with torch.no_grad():
        model.embed.mul_(8)
    model.refresh()
    return model


def trainer_of(model: Decoder, temperature: float = 1.0) -> Trainer:
    optim = OptimConfig(lr=3e-3)
    return Trainer(model, optim, SchedulerConfig(), 10, policy_objective(LossConfig()), temperature)


def update(trainer: Trainer) -> None:
    """A real update, on tokens of the prompts."""
    ids = np.array([token for example in EXAMPLES for token in RENDERER.prompt_ids(example.prompt)])
    mask = np.arange(len(ids)) > 0
    trainer.step([pack([Packed(ids, mask, np.full(len(ids), -3.0, np.float32), np.zeros(len(ids)), advantage=1.0)])])


class Watched:
    """A canary on a sampler, with the memory that diagnoses need."""

    def __init__(self, trainer: Trainer, policy: EnginePolicy, band=BANDS["hone", "fp32"]) -> None:
        self.trainer = trainer
        self.canary = Canary(policy, trainer, RENDERER, EXAMPLES, band, seed=5, seq_len=96)
        self.diagnosis = Diagnosis(self.canary)

    def publish(self) -> tuple[Verdict, Cause | None]:
        version = self.trainer.version
        self.canary.policy.load(version)
        measured = self.canary.measure(version)
        cause = self.diagnosis.cause(measured) if measured.verdict else None
        self.diagnosis.remember(measured)
        return measured.verdict, cause


def test_the_canary_is_short_and_made_of_the_runs_prompts_and_its_seed():
    canary = Watched(trainer_of(peaked()), EnginePolicy(Engine(peaked()), RENDERER)).canary
    joined = [token for example in EXAMPLES for token in RENDERER.prompt_ids(example.prompt)]
    assert list(canary.fixed) == joined[:64]
    longest = sorted((tuple(RENDERER.prompt_ids(e.prompt)) for e in EXAMPLES), key=len)[-2:]
    assert sorted({r.prompt_ids for r in canary.requests}, key=len) == longest
    assert len({r.key for r in canary.requests}) == len(canary.requests) == 4
    short = Canary(canary.policy, canary.trainer, RENDERER, EXAMPLES, canary.band, seed=6, seq_len=33)
    assert not {r.key for r in short.requests} & {r.key for r in canary.requests}
    assert list(short.fixed) == joined[:32]
    assert all(len(r.prompt_ids) + r.max_tokens <= 33 for r in short.requests)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_one_model_on_both_sides_is_in_the_band_after_every_update(precision):
    model = peaked(precision)
    trainer = trainer_of(model)
    engine = Engine(model, prefix_bytes=2**24)
    watched = Watched(trainer, EnginePolicy(engine, RENDERER, lambda: trainer.version), BANDS["hone", precision])
    for _ in range(3):
        assert watched.publish() == (Verdict.OK, None)
        first, again = (watched.canary.measure(trainer.version).metrics() for _ in range(2))
        assert first["canary/gap/max"] <= (1e-5 if precision == "fp32" else 5e-2)
        fresh = Watched(trainer, EnginePolicy(Engine(model, prefix_bytes=2**24), RENDERER), watched.canary.band)
        fresh.canary.measure(trainer.version)
        assert fresh.canary.measure(trainer.version).metrics() == again, "nothing that came before is in the metrics"
        update(trainer)


class Unscored(EnginePolicy):
    """A sampler that can't score given tokens."""

    def score(self, sequences: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
        return [[float("nan")] * (len(ids) - 1) for ids in sequences]


@pytest.mark.parametrize("kind", [EnginePolicy, Unscored])
def test_stale_weights(kind):
    model = peaked()
    trainer = trainer_of(model)
    watched = Watched(trainer, kind(Engine(copy.deepcopy(model)), RENDERER))
    assert watched.publish() == (Verdict.OK, None)
    update(trainer)
    verdict, cause = watched.publish()
    assert verdict == Verdict.STOP and cause and cause.name == "stale weights", cause
    assert "the weights of version 0, not 1" in cause.text


def test_stale_cache():
    """An engine that keeps the prefixes of older weights: what it scores is right, what it samples is not."""

    class Forgetless(EnginePolicy):
        def load(self, version, path=None):
            self.engine.version = version

    for kind, expected in ((Forgetless, "stale cache"), (EnginePolicy, None)):
        model = peaked()
        trainer = trainer_of(model)
        watched = Watched(trainer, kind(Engine(model, prefix_bytes=2**24), RENDERER, lambda t=trainer: t.version))
        assert watched.publish() == (Verdict.OK, None)
        update(trainer)
        verdict, cause = watched.publish()
        assert (cause and cause.name) == expected, cause
        assert verdict == (Verdict.STOP if expected else Verdict.OK)


@pytest.mark.parametrize(("sampled_at", "trained_at"), [(0.7, 1.0), (1.0, 0.7)])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_another_temperature(sampled_at, trained_at, precision):
    class Warm(EnginePolicy):
        def sample(self, requests, sampling):
            return super().sample(requests, replace(sampling, temperature=sampled_at))

    model = peaked(precision)
    watched = Watched(trainer_of(model, trained_at), Warm(Engine(model), RENDERER), BANDS["hone", precision])
    verdict, cause = watched.publish()
    assert verdict == Verdict.STOP and cause and cause.name == "sampling transform", cause
    assert f"at temperature {sampled_at:g}, not {trained_at:g}" in cause.text


@pytest.mark.parametrize(("cut", "expected"), [({"top_k": 5}, "top_k = 5"), ({"top_p": 0.6}, "top_p = 0.6")])
def test_a_renormalised_cut(cut, expected, tmp_path):
    """transformers' `generate` samples from, and reports, the distribution that a cut leaves."""
    transformers = pytest.importorskip("transformers")
    model = peaked()
    with torch.no_grad():
        model.embed.div_(3)
    model.refresh()
    save_model(model, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)

    class Transformers(EnginePolicy):
        def sample(self, requests, sampling):
            how = {"do_sample": True, "top_k": 0, "top_p": 1.0, "eos_token_id": None} | cut
            found = []
            for i, request in enumerate(requests):
                torch.manual_seed(i)
                prompt = torch.tensor([request.prompt_ids])
                out = theirs.generate(
                    prompt, max_new_tokens=16, output_scores=True, return_dict_in_generate=True, pad_token_id=0, **how
                )
                ids = out.sequences[0, prompt.shape[1] :]
                logprobs = [torch.log_softmax(s[0], -1)[t].item() for s, t in zip(out.scores, ids, strict=True)]
                found.append(as_trajectory(request, request.prompt_ids, ids.tolist(), logprobs))
            return found

    verdict, cause = Watched(trainer_of(model), Transformers(Engine(model), RENDERER)).publish()
    assert verdict == Verdict.STOP and cause and cause.name == "sampling transform", cause
    assert expected in cause.text


def as_trajectory(request, prompt, ids, logprobs) -> Trajectory:
    n, m = len(prompt), len(ids)
    return Trajectory(
        token_ids=np.array([*prompt, *ids], dtype=np.int64),
        sampled_mask=np.repeat([False, True], [n, m]),
        logprobs=np.array([0.0] * n + list(logprobs), dtype=np.float32),
        versions=np.repeat([-1, 0], [n, m]).astype(np.int32),
        messages=[*request.messages, {"role": "assistant", "content": ""}],
        stop_reason="length",
        sample_id=request.sample_id,
    )


@pytest.mark.parametrize("tells", [True, False])
def test_a_bos_put_before_the_prompt(tells):
    """A sampler that puts a token before the prompt, and reports the prompt that it had, or the one that was sent."""

    class Prepends(EnginePolicy):
        def sample(self, requests, sampling):
            sent = [replace(r, prompt_ids=(BOS, *r.prompt_ids)) for r in requests]
            given = super().sample(sent, sampling)
            if tells:
                return given
            cut = [(t.token_ids[t.sampled_mask], t.logprobs[t.sampled_mask]) for t in given]
            return [as_trajectory(r, r.prompt_ids, *pair) for r, pair in zip(requests, cut, strict=True)]

    model = peaked(config=replace(CONFIG, bos_token_id=BOS))
    verdict, cause = Watched(trainer_of(model), Prepends(Engine(model), RENDERER)).publish()
    assert verdict == Verdict.STOP and cause and cause.name == "template", cause
    longest = max(len(RENDERER.prompt_ids(e.prompt)) for e in EXAMPLES)
    said = f"a prompt of {longest + 1} tokens that is not the one of {longest}" if tells else f"the token {BOS} (bos)"
    assert said in cause.text


def test_another_dtype():
    model, rounded = peaked(), peaked("bf16")
    watched = Watched(trainer_of(model), EnginePolicy(Engine(rounded), RENDERER))
    verdict, cause = watched.publish()
    assert verdict >= Verdict.WARN and cause and cause.name == "numerics", cause
    assert "inference.dtype" in cause.remedy


def test_a_logprob_that_is_no_number_stops():
    class Broken(EnginePolicy):
        def sample(self, requests, sampling):
            return [replace(t, logprobs=t.logprobs - np.float32("inf")) for t in super().sample(requests, sampling)]

    model = peaked()
    verdict, cause = Watched(trainer_of(model), Broken(Engine(model), RENDERER)).publish()
    assert verdict == Verdict.STOP and cause and "sampler computes logprobs that are not finite" in cause.text
