"""The recipes of the tasks hold the numbers they claim, belong together, and the tiny ones run."""

from __future__ import annotations

import json
import shlex
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from present import NO_AUDIT

from hone.cli import main
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments import load_environment
from hone.extension import extensions
from hone.model.chat import load_renderer
from hone.runs import Run

ROOT = Path(__file__).parent.parent
TINY = {"char_count": (1000, 150), "countdown": (200, 250), "scramble": (600, 150), "calculator": (800, 60)}
"""Steps of SFT and of RL."""
GSM8K = {
    "model.name": "Qwen/Qwen2.5-1.5B-Instruct",
    "max_steps": 1250,
    "seq_len": 1024,
    "trainer.optim.lr": 1e-6,
    "trainer.loss.kl_coef": 0.0,
    "trainer.loss.type": "clip",
    "orchestrator.batch_size": 16,
    "orchestrator.rollouts_per_example": 4,
    "orchestrator.sampling.max_tokens": 512,
    "orchestrator.advantage.scale": "none",
    "orchestrator.max_examples": 5000,
}
COUNTDOWN = {
    "trainer.optim.lr": 1e-6,
    "orchestrator.batch_size": 256,
    "orchestrator.rollouts_per_example": 8,
    "orchestrator.sampling.max_tokens": 256,
    "orchestrator.sampling.temperature": 1.0,
    "orchestrator.env.args": {
        "dataset": "Jiayi-Pan/Countdown-Tasks-3to4",
        "num_train_examples": 327_680,
        "num_eval_examples": 1_024,
    },
}
NUMBERS: dict[str, dict[str, Any]] = {
    "countdown/rl_0.5b.toml": COUNTDOWN | {"model.name": "Qwen/Qwen2.5-0.5B-Instruct"},
    "countdown/rl_1.5b.toml": COUNTDOWN | {"model.name": "Qwen/Qwen2.5-1.5B-Instruct"},
    "gsm8k/v1_sparse.toml": GSM8K | {"orchestrator.env.args": {"mode": "sparse", "dataset": "openai/gsm8k"}},
    "gsm8k/v2_two_part.toml": GSM8K | {"orchestrator.env.args": {"mode": "two_part", "dataset": "openai/gsm8k"}},
    "math_python/rl.toml": {},
    "one_shot/rl.toml": {
        "model.name": "Qwen/Qwen2.5-Math-1.5B",
        "max_steps": 500,
        "seq_len": 4096,
        "trainer.optim.lr": 1e-6,
        "trainer.loss.kl_coef": 1e-3,
        "trainer.loss.eps_high": 0.2,
        "orchestrator.batch_size": 1024,
        "orchestrator.rollouts_per_example": 8,
        "orchestrator.sampling.max_tokens": 3072,
        "orchestrator.sampling.temperature": 0.6,
        "orchestrator.advantage.scale": "group_std",
    },
    "scramble/rl.toml": {},
}


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def rl(path: str) -> RLConfig:
    return parse(RLConfig, ["@", f"examples/{path}"], "rl")


@pytest.mark.parametrize("file", NUMBERS)
def test_numbers(file: str) -> None:
    config = rl(file)
    assert {key: reduce(getattr, key.split("."), config) for key in NUMBERS[file]} == NUMBERS[file]
    assert config.mode is None and config.ckpt is not None
    assert (config.orchestrator.sampling.max_tokens or 0) < config.seq_len
    if config.orchestrator.env.id != "math-python" or "sandbox" in extensions():
        load_environment(config.orchestrator.env.id, **config.orchestrator.env.args)


@pytest.mark.parametrize("task", TINY)
def test_tiny_recipes_belong_together(task: str) -> None:
    before, after = parse(SFTConfig, ["@", f"examples/{task}/tiny_sft.toml"], "sft"), rl(f"{task}/tiny.toml")
    assert (before.max_steps, after.max_steps) == TINY[task] and before.data.env is not None
    assert before.data.env.id == after.orchestrator.env.id == task.replace("_", "-")
    assert after.model.name == f"{before.output_dir}/weights/step_{before.max_steps}"
    assert before.data.env.args.items() - {("demo_noise", 1.0)} == after.orchestrator.env.args.items()


@pytest.mark.parametrize("task", ["char_count", "countdown", "scramble"])
def test_prompts_and_answers_of_tiny_recipes_fit(task: str, tiny_model_dir: Path) -> None:
    config = rl(f"{task}/tiny.toml")
    env = load_environment(config.orchestrator.env.id, **config.orchestrator.env.args)
    renderer = load_renderer(str(tiny_model_dir))
    text = int((ROOT / "examples" / task / "tiny.toml").read_text().split("# Prompt (at most ")[1].split()[0])
    examples = env.split("train")[:500]
    answers = [len(renderer.completion_ids(example.prompt, env.reference(example))) for example in examples]
    assert max(answers) <= config.orchestrator.sampling.max_tokens
    assert max(len(renderer.prompt_ids(example.prompt)) for example in examples) == text
    assert text + config.orchestrator.sampling.max_tokens <= config.seq_len


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


def test_the_page_on_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its first commands, cut to a step of training."""
    page = (ROOT / "docs" / "tasks.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = page.split("## hone's tasks")[1].split("```bash\n")[1].split("```")[0]
    sft, rl, evaluate = (shlex.split(line, comments=True) for line in commands.splitlines())
    short = ["--display", "plain", "--max-steps", "1"]
    assert main([*sft, *short]) == 0
    noted = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("Next: hone "))
    assert noted[:3] == ["eval", "@", "outputs/char-count-sft/config.toml"]
    Path("outputs/char-count-sft/weights/step_1000").symlink_to("step_1")
    few = ["--orchestrator.eval.num-examples", "4", "--orchestrator.batch-size", "16"]
    assert main([*rl, *short, *few]) == 0
    Path("outputs/char-count-rl/weights/step_150").symlink_to("step_1")
    assert main([*evaluate[1:], "-r", "1", "-n", "4", "--no-save"]) == 0
