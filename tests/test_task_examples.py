"""The recipes of char-count, countdown and scramble hold the numbers they claim, and the tiny ones run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hone.cli import main
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments import load_environment
from hone.model.chat import load_renderer
from hone.runs import Run

ROOT = Path(__file__).parent.parent
TASKS = ["char_count", "countdown", "scramble"]


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def rl(path: str) -> RLConfig:
    return parse(RLConfig, ["@", f"examples/{path}"], "rl")


def sft(path: str) -> SFTConfig:
    return parse(SFTConfig, ["@", f"examples/{path}"], "sft")


def test_every_recipe_is_read_by_a_test_here() -> None:
    files = {
        str(path.relative_to(ROOT / "examples")) for task in TASKS for path in (ROOT / "examples" / task).iterdir()
    }
    tiny = {f"{task}/{name}" for task in TASKS for name in ("tiny.toml", "tiny_sft.toml")}
    assert files == tiny | {"countdown/rl_0.5b.toml", "countdown/rl_1.5b.toml", "scramble/rl.toml"}


@pytest.mark.parametrize("size", ["0.5", "1.5"])
def test_countdown(size: str) -> None:
    config = rl(f"countdown/rl_{size}b.toml")
    assert config.model.name == f"Qwen/Qwen2.5-{size}B-Instruct"
    assert config.orchestrator.sampling.max_tokens == 256 and config.orchestrator.sampling.temperature == 1.0
    assert (config.orchestrator.batch_size, config.orchestrator.rollouts_per_example) == (256, 8)
    assert config.trainer.optim.lr == 1e-6
    assert config.orchestrator.env.args == {
        "dataset": "Jiayi-Pan/Countdown-Tasks-3to4",
        "num_train_examples": 327_680,
        "num_eval_examples": 1_024,
    }


def test_scramble() -> None:
    config = rl("scramble/rl.toml")
    assert config.orchestrator.rollouts_per_example == 16 and config.orchestrator.sampling.max_tokens == 1024
    assert config.model.name == "Qwen/Qwen2.5-1.5B-Instruct"


@pytest.mark.parametrize(
    ("task", "steps"), [("char_count", (1000, 150)), ("countdown", (200, 250)), ("scramble", (600, 150))]
)
def test_tiny_recipes_belong_together(task: str, steps: tuple[int, int]) -> None:
    before, after = sft(f"{task}/tiny_sft.toml"), rl(f"{task}/tiny.toml")
    assert (before.max_steps, after.max_steps) == steps and before.data.env is not None
    assert after.model.name == f"{before.output_dir}/weights/step_{before.max_steps}"
    assert before.data.env.args.items() - {("demo_noise", 1.0)} == after.orchestrator.env.args.items()
    assert (before.data.batch_size, before.data.pack, before.optim.lr) == (32, False, 2e-3)
    assert before.model.init.layers == (3 if task == "countdown" else 2)
    assert after.trainer.optim.lr == (3e-4 if task == "scramble" else 2e-4)
    assert after.orchestrator.batch_size == (256 if task == "countdown" else 128)


@pytest.mark.parametrize("task", TASKS)
def test_prompts_and_answers_of_tiny_recipes_fit(task: str, tiny_model_dir: Path) -> None:
    config = rl(f"{task}/tiny.toml")
    env = load_environment(config.orchestrator.env.id, **config.orchestrator.env.args)
    renderer = load_renderer(str(tiny_model_dir))
    said = int((ROOT / "examples" / task / "tiny.toml").read_text().split("# Prompt (at most ")[1].split()[0])
    longest = 0
    for i in range(500):
        example = env.split("train")[i]
        longest = max(longest, len(renderer.prompt_ids(example.prompt)))
        answer = renderer.completion_ids(example.prompt, env.reference(example))
        assert len(answer) <= config.orchestrator.sampling.max_tokens
    assert longest == said and longest + config.orchestrator.sampling.max_tokens <= config.seq_len


@pytest.mark.parametrize("task", TASKS)
def test_tiny_recipes_run(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--display", "plain", "--max-steps", "1"]
    assert main(["sft", "@", f"examples/{task}/tiny_sft.toml", *short, "--output-dir", str(tmp_path / "sft")]) == 0
    model = ["--model.name", str(tmp_path / "sft/weights/step_1"), "--output-dir", str(tmp_path / "rl")]
    few = ["--orchestrator.eval.num-examples", "4", "--orchestrator.batch-size", "16"]
    assert main(["rl", "@", f"examples/{task}/tiny.toml", *short, *model, *few]) == 0
    metrics = Run(tmp_path / "rl").metrics()
    assert "reward/correctness/mean" in metrics.column_names and "reward/format/mean" in metrics.column_names


def test_the_page_on_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its first commands, cut to a step of training."""
    page = (ROOT / "docs" / "tasks.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = page.split("```bash\n")[1].split("```")[0]
    sft, rl, evaluate = (shlex.split(line, comments=True) for line in commands.splitlines())
    short = ["--display", "plain", "--max-steps", "1"]
    assert main([*sft, *short]) == 0
    told = capsys.readouterr().out.splitlines()[-1].removeprefix("Next: hone ")
    assert shlex.split(told)[-1] == '{"prompt": "{word} {letter}", "format_hint": false, "demo_noise": 1.0}'
    Path("outputs/char-count-sft/weights/step_1000").symlink_to("step_1")
    few = ["--orchestrator.eval.num-examples", "4", "--orchestrator.batch-size", "16"]
    assert main([*rl, *short, *few]) == 0
    Path("outputs/char-count-rl/weights/step_150").symlink_to("step_1")
    assert main([*evaluate[1:], "-r", "1", "-n", "4", "--no-save"]) == 0
