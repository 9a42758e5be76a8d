"""The recipes in examples/ hold the numbers they claim, and the three-file command is the same run as the one file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from hone.config.base import BaseConfig
from hone.config.parse import parse
from hone.config.rl import RLConfig

ROOT = Path(__file__).parent.parent
REVERSE_TEXT = "examples/reverse_text"
QWEN_SFT = "PrimeIntellect/Qwen3-0.6B-Reverse-Text-SFT"


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def rl(line: str) -> RLConfig:
    return parse(RLConfig, shlex.split(line), "rl")


def values(config: BaseConfig, *names: str) -> list[Any]:
    """The values of dotted names."""
    found = []
    for name in names:
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part)
        found.append(value)
    return found


RL_NUMBERS = {
    "max_steps": 40,
    "seq_len": 128,
    "model.name": QWEN_SFT,
    "trainer.optim.lr": 3e-6,
    "orchestrator.batch_size": 128,
    "orchestrator.rollouts_per_example": 16,
    "orchestrator.sampling.max_tokens": 64,
    "orchestrator.sampling.temperature": 1.0,
    "orchestrator.env.id": "reverse-text",
    "orchestrator.advantage.scale": "none",
    "orchestrator.eval.interval": 10,
    "trainer.loss.kl_coef": 0.0,
}
THREE_FILES = (
    f"--trainer @ {REVERSE_TEXT}/rl/train.toml --orchestrator @ {REVERSE_TEXT}/rl/orch.toml "
    f"--inference @ {REVERSE_TEXT}/rl/infer.toml"
)


def test_rl() -> None:
    config = rl(f"@ {REVERSE_TEXT}/rl.toml")
    assert values(config, *RL_NUMBERS) == list(RL_NUMBERS.values())
    assert config.mode is None and config.ckpt is not None


def test_rl_in_three_files_is_the_same_run_in_split_mode() -> None:
    config = rl(THREE_FILES)
    assert config.mode == "split"
    one = rl(f"@ {REVERSE_TEXT}/rl.toml")
    assert config.model_copy(update={"mode": None}) == one
    assert rl(f"{THREE_FILES} --mode colocated").model_copy(update={"mode": None}) == one
