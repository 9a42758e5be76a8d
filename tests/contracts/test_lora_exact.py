"""Contracts 1 to 4 with LoRA. Changing what is compared here is a decision to report, not a fix."""

from __future__ import annotations

import shutil

import pytest
import recipes
import states
import tampering
import trials
from recipes import STEPS, Recipe
from safetensors.torch import load_file

from hone.config.shared import LoraConfig
from hone.model.hf import load_model, merged
from hone.model.lora import load_adapter


@pytest.fixture(scope="module", params=["fp32", "bf16_linear"])
def recipe(request, cook) -> Recipe:
    return cook("lora", request.param)


@pytest.fixture(scope="module", params=["lora", "lora_4bit"])
def low(request, cook) -> Recipe:
    return cook(request.param, "bf16_linear")


def test_sampler_and_trainer_agree_and_the_adapter_is_trained(recipe):
    lines = states.lines(recipe.unbroken / "metrics.jsonl")
    steps, bound = [line for line in lines if "logprob_gap/max" in line], 5e-2 if "bf16_linear" in recipe.args else 1e-5
    assert len(steps) >= STEPS - 2 and all(line["grad_norm"] > 0 for line in steps)
    assert all(line["logprob_gap/max"] <= bound for line in steps)
    assert steps[0]["kl"] == 0 and steps[-1]["kl"] > 1e-4


def test_a_checkpoint_has_only_the_adapter_and_the_weights_are_merged(recipe, warm_model):
    run, precision = recipe.unbroken, "bf16_linear" if "bf16_linear" in recipe.args else "fp32"
    saved = load_file(run / "checkpoints" / f"step_{STEPS}" / "model.safetensors")
    assert len(saved) == 8 and {name.rpartition(".")[2] for name in saved} == {"lora_A", "lora_B"}
    moments = load_file(run / "checkpoints" / f"step_{STEPS}" / "optimizer.safetensors")
    assert {name.partition("/")[2] for name in moments} == saved.keys()
    weights = run / "weights" / f"step_{STEPS}"
    model = load_model(warm_model, precision=precision, lora=LoraConfig(rank=4))
    adapter = load_adapter(weights / "adapter", model.config)
    assert all((adapter[name] == saved[name]).all() for name in saved)
    exported = load_model(weights, precision=precision)
    for name, parameter in exported.named_parameters():
        assert (merged(model, name, dict(model.base) | adapter) == parameter).all(), name
    assert not (exported.layers[0].qkv_proj.weight == model.layers[0].qkv_proj.weight).all()


def test_killed_and_resumed_equals_never_killed(low, tmp_path):
    low.stopped_late_and_resumed(tmp_path)


@pytest.mark.needs("reproduce")
def test_sft_too(tmp_path):
    recipe = Recipe.cook([*recipes.sft("bf16_linear"), "--model.lora.rank", "4"], tmp_path)
    out, log = recipe.stopped_late_and_resumed(tmp_path), tmp_path / "log.txt"
    losses = [line["loss"] for line in states.lines(out / "metrics.jsonl")[:-1]]
    assert losses[-1] < losses[0]
    assert trials.run(["verify", str(out), "--steps", "2"], log) == 0, log.read_text()


@pytest.mark.needs("reproduce")
def test_it_is_verified_and_replayed(low, tmp_path):
    low.rebuilt(tmp_path)
    run, log, last, file = tmp_path / "copied", tmp_path / "log", f"step_{STEPS}", "adapter/adapter_model.safetensors"
    assert (tmp_path / "replayed" / file).read_bytes() == (run / "weights" / last / file).read_bytes()
    tampering.edit_tensor(run / "weights" / last / "model.safetensors", "model.layers.0.mlp.up_proj.weight", True)
    assert trials.run(["replay", str(run)], log) == 1
    assert f"layers.0.gate_up_proj.weight in weights/{last}/merged" in log.read_text()


@pytest.mark.needs("reproduce")
def test_another_base_is_refused(low, warm_model, tmp_path):
    run, log, model = shutil.copytree(low.unbroken, tmp_path / "run"), tmp_path / "log", tmp_path / "model"
    shutil.copytree(warm_model, model)
    tampering.edit_tensor(model / "model.safetensors", "model.layers.0.mlp.up_proj.weight", True)
    assert trials.run(["verify", str(run), "--model", str(model), "--steps", "1"], log) == 2
    assert "is not the model that it began with" in log.read_text()
    argv = [*low.argv(run, "--resume", "--max-steps", str(STEPS + 1)), "--model.name", str(model)]
    assert trials.run(argv, log) == 2
    assert "with another initial model" in log.read_text()
