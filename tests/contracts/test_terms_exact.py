"""Contract 2 for what adds to the loss or to the reward: a teacher, and the KL to the initial model, also where prompts
are drawn until a batch is full, and in a run of several tasks. Killed and resumed equals never killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import recipes
import states
from real_server import Served, serving
from recipes import Recipe
from traps import At, Call, Trap

from hone.model.hf import load_model

KL = ["--trainer.loss.kl-coef", "0.1"]
KILLS = {"packing": Call("hone.loops.steps.trainable", 6), "metrics torn": At("write", "metrics.jsonl", 6, "half")}


@pytest.fixture(scope="module")
def teacher(warm_model: Path) -> Iterator[Served]:
    with serving(load_model(warm_model, precision="fp32")) as served:
        yield served


@pytest.fixture(scope="module")
def cook_terms(warm_model: Path, teacher: Served, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Recipe]:
    taught = ["--teacher.base-url", f"{teacher.url}/v1", "--teacher.reward-coef", "1", "--trainer.optim.lr", "3e-3"]
    rl, mix = recipes.rl(warm_model, "fp32"), recipes.mix(warm_model, "fp32")
    kinds = {
        "teacher": [*rl, *taught],
        "one rollout of a prompt": [*rl, "--algorithm", "reinforce++", "--orchestrator.rollouts-per-example", "1", *KL],
        "leave one out": [*rl, "--algorithm", "rloo", *KL],
        "refill": [*recipes.refill(warm_model, "fp32"), *KL],
        "several tasks": [*mix, *KL],
    }
    return cache(lambda kind: Recipe.cook(kinds[kind], tmp_path_factory.mktemp("terms")))


@pytest.mark.parametrize("event", ["packing", pytest.param("metrics torn", marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["teacher", "one rollout of a prompt", "leave one out", "refill", "several tasks"])
def test_killed_and_resumed_equals_never_killed(kind, event, cook_terms, tmp_path):
    recipe = cook_terms(kind)
    name = "teacher/kl" if kind == "teacher" else "kl"
    assert any(line.get(name) for line in states.lines(recipe.unbroken / "metrics.jsonl"))
    recipe.killed_and_resumed(Trap(KILLS[event]), tmp_path)
