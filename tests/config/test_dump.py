"""A resolved config is TOML that reads back equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config.base import BaseConfig
from hone.config.dump import to_toml
from hone.config.eval import EvalConfig
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig


@pytest.mark.parametrize(
    ("cls", "argv"),
    [
        (RLConfig, ["--ckpt", "--trainer.optim.lr", "3e-6", "--orchestrator.eval.interval", "7", "--mode", "split"]),
        (RLConfig, ["--orchestrator.env.args", '{"answer": "5", "n": [1, 2.5, null], "deep": {"x": null}}']),
        (RLConfig, ["--model.chat-template", 'a "quoted"\nline\\ and é', "--resume"]),
        (SFTConfig, ["--data.path", "data/a.jsonl", "--no-data.pack", "--optim.betas", "0.8", "0.9", "--threads", "2"]),
        (EvalConfig, ["reverse-text", "-m", "outputs/w", "-a", '{"seed": 3}', "--output-dir", "outputs/e"]),
    ],
)
def test_round_trip_through_a_file(cls: type[BaseConfig], argv: list[str], tmp_path: Path) -> None:
    config = parse(cls, argv, "prog")
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    again = parse(cls, ["@", str(file)], "prog")
    assert again == config
    assert to_toml(again) == to_toml(config)
