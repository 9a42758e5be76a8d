"""calculator: a tool task that the tiny preset learns. Its demonstrations, grading and recipes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hone.cli import main
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments import load_environment
from hone.errors import UserError
from hone.model.chat import load_renderer
from hone.runs import Run
from hone.types import Outcome

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def env():
    return load_environment("calculator")


def test_problems_are_all_there_and_parted(env) -> None:
    train, held_out = ({(e.info["a"], e.info["b"]) for e in env.split(name)} for name in ("train", "eval"))
    assert (len(train), len(held_out)) == (7290, 810) and not train & held_out
    assert env.example(a=12, b=34).prompt == [{"role": "user", "content": "12 * 34?"}]
    with pytest.raises(UserError, match="demo_noise is 4: input should be less than or equal to 3"):
        load_environment("calculator", demo_noise=4)


def test_demonstrations(env) -> None:
    example = env.example(a=12, b=34)
    called, told, answered = env.reference(example)
    function = called["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("multiply", {"a": 12, "b": 34})
    assert told["tool_call_id"] == called["tool_calls"][0]["id"] and told["content"] == "408"
    assert answered["content"] == "<answer>408</answer>"
    assert env.grade(example, [called, told, answered]).reward == 1.0
    assert env.grade(example, [called, told]).outcome is Outcome.UNPARSABLE
    teacher, rng = load_environment("calculator", demo_noise=1.0), np.random.default_rng(0)
    shown = [teacher.grade(e, teacher.demonstrate(e, rng)).outcome for e in env.split("train")[:600]]
    assert shown.count("correct") / 600 == pytest.approx(2 / 3, abs=0.05) and set(shown) == {"correct", "wrong"}
    assert teacher.demonstrate(example, np.random.default_rng(7)) == teacher.demonstrate(
        example, np.random.default_rng(7)
    )


def test_recipes_belong_together(env) -> None:
    before = parse(SFTConfig, ["@", "examples/calculator/tiny_sft.toml"], "sft")
    after = parse(RLConfig, ["@", "examples/calculator/tiny.toml"], "rl")
    assert before.data.env is not None and (before.data.env.id, after.orchestrator.env.id) == ("calculator",) * 2
    assert after.model.name == f"{before.output_dir}/weights/step_{before.max_steps}"
    assert (before.max_steps, after.max_steps, after.orchestrator.batch_size) == (800, 60, 128)
    renderer = load_renderer("hone/tiny")
    example = env.example(a=12, b=34)
    called, told, answered = env.reference(example)
    prompt = renderer.prompt_ids(example.prompt, env.tool_schemas)
    call = renderer.completion_ids(example.prompt, called, env.tool_schemas)
    bridge = renderer.bridge_ids([*example.prompt, called], [told], env.tool_schemas)
    answer = renderer.completion_ids([*example.prompt, called, told], answered, env.tool_schemas)
    assert (len(prompt), len(call), len(answer)) == (133, 58, 6)
    assert len(prompt + call + bridge + answer) < after.seq_len < before.data.seq_len
    assert max(len(call), len(answer)) <= after.orchestrator.sampling.max_tokens


def test_recipes_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps of each: the weights carry a template with tools, and rollouts are conversations."""
    short = ["--display", "plain", "--max-steps", "2"]
    sft = ["sft", "@", "examples/calculator/tiny_sft.toml", "--output-dir", str(tmp_path / "sft")]
    assert main([*sft, *short, "--data.batch-size", "2"]) == 0
    model = ["--model.name", str(tmp_path / "sft/weights/step_2"), "--output-dir", str(tmp_path / "rl")]
    few = ["--orchestrator.eval.num-examples", "4", "--orchestrator.batch-size", "16"]
    assert main(["rl", "@", "examples/calculator/tiny.toml", *short, *model, *few]) == 0, capsys.readouterr().err
    config = json.loads((tmp_path / "sft/weights/step_2/tokenizer_config.json").read_text())
    assert "<tool_response>" in config["chat_template"]
    assert "reward/correctness/mean" in Run(tmp_path / "rl").metrics().column_names
    rows = Run(tmp_path / "rl").rollouts(0).to_pylist()
    assert len(rows) == 16 and all(json.loads(row["completion"])[0]["role"] == "assistant" for row in rows)
