"""The configs of gsm8k, one-shot and math-python hold the numbers they claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.environments import ToolEnv, load_environment
from hone.types import Outcome

ROOT = Path(__file__).parent.parent
FILES = ("gsm8k/v1_sparse.toml", "gsm8k/v2_two_part.toml", "one_shot/rl.toml", "math_python/rl.toml")


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def rl(file: str) -> RLConfig:
    return parse(RLConfig, ["@", f"examples/{file}"], "rl")


def numbers(config: RLConfig) -> dict[str, Any]:
    orch = config.orchestrator
    return {
        "model": config.model.name,
        "steps": config.max_steps,
        "groups": (orch.batch_size // orch.rollouts_per_example, orch.rollouts_per_example),
        "tokens": (config.seq_len, orch.sampling.max_tokens),
        "temperature": orch.sampling.temperature,
        "lr": config.trainer.optim.lr,
        "kl": config.trainer.loss.kl_coef,
        "clip": (config.trainer.loss.eps_low, config.trainer.loss.eps_high),
        "std": orch.advantage.normalize_std,
        "examples": orch.max_examples,
    }


@pytest.mark.parametrize("mode", ["sparse", "two_part"])
def test_gsm8k(mode: str) -> None:
    config = rl(f"gsm8k/{'v1' if mode == 'sparse' else 'v2'}_{mode}.toml")
    assert numbers(config) == {
        "model": "Qwen/Qwen2.5-1.5B-Instruct",
        "steps": 1250,
        "groups": (4, 4),
        "tokens": (1024, 512),
        "temperature": 1.0,
        "lr": 1e-6,
        "kl": 0.0,
        "clip": (0.2, 0.28),
        "std": False,
        "examples": 5000,
    }
    assert config.orchestrator.env.args == {"mode": mode, "dataset": "openai/gsm8k"}
    other = rl("gsm8k/v1_sparse.toml")
    other.orchestrator.env.args["mode"] = mode
    assert config == other


def test_one_shot() -> None:
    config = rl("one_shot/rl.toml")
    assert numbers(config) == {
        "model": "Qwen/Qwen2.5-Math-1.5B",
        "steps": 500,
        "groups": (128, 8),
        "tokens": (4096, 3072),
        "temperature": 0.6,
        "lr": 1e-6,
        "kl": 1e-3,
        "clip": (0.2, 0.2),
        "std": True,
        "examples": None,
    }
    env = load_environment(config.orchestrator.env.id, **config.orchestrator.env.args)
    examples = list(env.split("train"))
    assert len(examples) == 128 and len({example.id for example in examples}) == 1
    assert examples[0].answer == "12.8"
    assert env.grade(examples[0], r"So the speed is $\boxed{12.8}$.").outcome is Outcome.CORRECT
    assert env.grade(examples[0], r"\boxed{12.7}").outcome is Outcome.WRONG


def test_math_python() -> None:
    config = rl("math_python/rl.toml")
    assert numbers(config)["groups"] == (16, 16) and numbers(config)["tokens"] == (4096, 1024)
    env = load_environment(config.orchestrator.env.id, **config.orchestrator.env.args)
    assert isinstance(env, ToolEnv) and env.max_turns == 4
    assert env.rubric.weights == {"correctness": 1.0, "tool_syntax": 0.1, "tool_use": 0.1}


@pytest.mark.parametrize("file", FILES)
def test_what_is_asked_for_exists(file: str) -> None:
    """Arguments that the task takes, and room for its completions."""
    config = rl(file)
    load_environment(config.orchestrator.env.id, **config.orchestrator.env.args)
    assert config.mode is None and config.ckpt is not None and config.ckpt.interval
    assert (config.orchestrator.sampling.max_tokens or 0) < config.seq_len
