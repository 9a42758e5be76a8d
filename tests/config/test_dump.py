"""A resolved config is TOML that reads back equal, with every default written out."""

from __future__ import annotations

import tomllib
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


def test_defaults_are_written_and_nulls_are_left_out() -> None:
    tree = tomllib.loads(to_toml(RLConfig(ckpt={}, threads=None)))
    assert tree["ckpt"] == {"background": True} and "resume" not in tree and "threads" not in tree
    assert tree["trainer"]["correction"] == {"type": "none", "cap": 2.0}
    assert tree["trainer"]["optim"]["lr"] == 1e-6
    assert "max_steps" not in tree["trainer"] and tree["max_steps"] == 100
    assert tree["output_dir"] == "outputs" and "mode" not in tree
