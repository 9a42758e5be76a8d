"""The tiny recipes of the tasks belong together, and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from present import NO_AUDIT

from hone.cli import main
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.runs import Run

ROOT = Path(__file__).parent.parent
TINY = {"char_count": (1000, 150), "countdown": (200, 250), "scramble": (600, 150), "calculator": (800, 60)}
"""Steps of SFT and of RL."""


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def rl(path: str) -> RLConfig:
    return parse(RLConfig, ["@", f"examples/{path}"], "rl")


@pytest.mark.parametrize("task", TINY)
def test_tiny_recipes_belong_together(task: str) -> None:
    before, after = parse(SFTConfig, ["@", f"examples/{task}/tiny_sft.toml"], "sft"), rl(f"{task}/tiny.toml")
    assert (before.max_steps, after.max_steps) == TINY[task] and before.data.env is not None
    assert before.data.env.id == after.orchestrator.env.id == task.replace("_", "-")
    assert after.model.name == f"{before.output_dir}/weights/step_{before.max_steps}"
    assert before.data.env.args.items() - {("demo_noise", 1.0)} == after.orchestrator.env.args.items()


@pytest.mark.parametrize("task", ["countdown", "calculator"])
def test_tiny_recipes_run(task: str, tmp_path: Path) -> None:
    """A step of each: rewards are recorded, conversations begin with the model, weights carry a template with tools."""
    short = ["--display", "none", "--max-steps", "1"]
    sft = ["sft", "@", f"examples/{task}/tiny_sft.toml", "--output-dir", str(tmp_path / "sft")]
    assert main([*sft, *short, "--data.batch-size", "2"]) == 0
    model = ["--model.name", str(tmp_path / "sft/weights/step_1"), "--output-dir", str(tmp_path / "rl")]
    few = ["--orchestrator.eval.num-examples", "4", "--orchestrator.batch-size", "16"]
    assert main(["rl", "@", f"examples/{task}/tiny.toml", *short, *model, *few, *NO_AUDIT]) == 0
    run = Run(tmp_path / "rl")
    assert {"reward/correctness/mean", "reward/format/mean"} <= set(run.metrics().column_names)
    rows = run.rollouts(0).to_pylist()
    turns = [json.loads(row["completion"] or "[{}]")[0].get("role") for row in rows]
    assert turns == [("assistant" if task == "calculator" else None)] * 16
    config = json.loads((tmp_path / "sft/weights/step_1/tokenizer_config.json").read_text())
    assert "<tool_response>" in config["chat_template"]
