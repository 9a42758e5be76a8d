"""`hone plan`, as it is typed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from hone.cli import main
from hone.commands.forecast import forecast
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import InitConfig
from hone.model.chat import load_renderer
from hone.model.presets import tiny_config
from hone.planning import devices
from hone.planning.data import look_at
from hone.runs.settings import run_toml

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(devices, "_measured_speed", lambda threads: ({"bf16": 4e11, "fp32": 1e11}, 3e10))


def test_the_first_run_on_gsm8k_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "@", "examples/gsm8k/v1_sparse.toml", "--on", "h100"]) == 0
    page = capsys.readouterr().out
    for words in (
        "RL of Qwen/Qwen2.5-1.5B-Instruct (1.54B parameters, bf16_linear) on gsm8k",
        "4 prompts x 4 rollouts = 16 completions",
        "1,250 steps x 16 = 20,000 completions",
        "each of the 5,000 is seen once",
        "Memory, H100 SXM 80 GB",
        "fits, with",
        "price: $2.75 an hour",
    ):
        assert words in page
    assert "Surprises" not in page


def test_no_line_is_longer_than_a_page_and_shares_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "@", "examples/gsm8k/v1_sparse.toml", "--on", "h100"]) == 0
    page = capsys.readouterr().out
    assert max(map(len, page.splitlines())) <= 120
    assert "  kv cache           4.0 GiB  keys" in page, "a table stays one"
    for told in re.findall(r"a step \(([^)]*)\)", " ".join(page.split())):
        assert sum(int(share) for share in re.findall(r"(\d+) %", told)) == pytest.approx(100, abs=2)


def test_what_does_not_fit_ends_with_1_and_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "@", "examples/gsm8k/v1_sparse.toml", "--on", "48gb"]) == 1
    page = capsys.readouterr().out
    assert "does NOT fit" in page and "What would make it fit" in page
    assert "--trainer.micro-batch-tokens" in page and "H100" in page


def test_json_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "@", "examples/gsm8k/v1_sparse.toml", "--on", "h100", "--json", "--usd-per-hour", "10"]
    assert main(line) == 0
    plan = json.loads(capsys.readouterr().out)
    steps = plan["steps"]
    assert (steps["rows"], steps["steps"], steps["total"], steps["epochs"]) == (16, 1250, 20_000, 1)
    assert plan["parameters"] == 1_543_714_304 and plan["fits"] and plan["surprises"] == []
    assert plan["memory"]["total"] <= sum(plan["memory"]["parts"].values())
    usual = plan["seconds"]["usual"]
    assert usual["usd"] == pytest.approx(usual["total"] / 3600 * 10)
    assert usual["total"] < plan["seconds"]["worst"]["total"]


def test_a_file_of_sft_is_seen_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "@", "examples/reverse_text/tiny_sft.toml"]) == 0
    page = capsys.readouterr().out
    assert "SFT of hone/tiny (0.43M parameters, bf16_linear) on reverse-text" in page
    assert "32 examples of at most 64 tokens" in page
    assert main(["plan", "--data.path", str(ROOT / "examples/one_shot/problem.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "sft"


def test_the_three_files_and_the_config_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = "examples/reverse_text/rl"
    files = ["--trainer", "@", f"{folder}/train.toml", "--orchestrator", "@", f"{folder}/orch.toml"]
    assert main(["plan", *files, "--on", "h100"]) == 0
    page = capsys.readouterr().out
    assert "8 prompts x 16 rollouts = 128 completions" in page and "mode split: memory and time are planned" in page
    config = parse(SFTConfig, ["@", "examples/reverse_text/tiny_sft.toml"], "sft")
    (tmp_path / "config.toml").write_text(run_toml(config, "sft"))
    assert main(["plan", "@", str(tmp_path / "config.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "sft"


def test_a_model_that_is_not_there_leaves_the_arithmetic(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "@", "examples/reverse_text/tiny.toml", "--model.name", "outputs/none/weights/step_1"]) == 0
    page = capsys.readouterr().out
    assert "16 prompts x 8 rollouts = 128 completions" in page
    assert "no memory, time and cost without the model's shape: there is no model folder outputs/none" in page
    assert "Memory" not in page


def test_what_a_run_can_not_start_without_is_said_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that a run makes, or that nothing is known of; a task; a file: and never that it may be started."""
    recipe = ["@", "examples/reverse_text/tiny.toml", "--model.name"]
    for line, words in {
        (*recipe, "outputs/none/weights/step_1"): "none/weights/step_1: the run that writes to outputs/none makes it.",
        (*recipe, "./none"): "`hone init-model ./none` makes a small one",
        ("--orchestrator.env.id", "nosuch"): "no environment 'nosuch'",
        ("--data.path", "none.jsonl"): "there is no file none.jsonl",
    }.items():
        assert main(["plan", *line]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("It can't start yet: ") and words in last and "start it:" not in last
    assert main(["plan", "--orchestrator.env.id", "nosuch", "--on", "h100"]) == 0
    assert "Here it could not start: no environment 'nosuch'" in capsys.readouterr().out
    assert main(["plan", "--orchestrator.env.id", "nosuch", "--json"]) == 0
    assert "no environment 'nosuch'" in json.loads(capsys.readouterr().out)["missing"][0]


def test_bad_input_is_told_with_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    for line, words in {
        "--on h1000": "did you mean h100?",
        "--orchestrator.batch-sise 8": "did you mean --orchestrator.batch-size?",
        "@": "`@` must be followed by the path of a .toml file",
        "--calibrate --on h100": "--calibrate measures this machine, and --on names another",
        "@ none.toml": "config file none.toml does not exist",
        "--orchestrator.rollouts-per-example 1": "set at least 2",
    }.items():
        assert main(["plan", *line.split()]) == 2
        said = capsys.readouterr()
        assert words in said.err and said.out == ""


def test_a_run_begins_with_its_plan_in_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["sft", "@", "examples/reverse_text/tiny_sft.toml", "--max-steps", "2", "--display", "plain"]
    assert main([*line, "--output-dir", str(tmp_path / "run"), "--scheduler.warmup-steps", "20"]) == 0
    said = capsys.readouterr().out
    assert "memory: about 4" in said and " free\n" in said
    assert said.count("note: scheduler.warmup_steps = 20 is more than half of the run") == 1
    shutil.rmtree(tmp_path / "run")
    assert main([*line, "--output-dir", str(tmp_path / "run"), "--scheduler.warmup-steps", "0"]) == 0
    assert "note:" not in capsys.readouterr().out


def test_a_run_of_several_processes_gets_no_estimate_of_its_memory() -> None:
    config = parse(RLConfig, ["--orchestrator.env.id", "reverse-text", "--trainer.scheduler.warmup-steps", "999"], "rl")
    about = (config, tiny_config(InitConfig()), load_renderer("hone/tiny"))
    memory, *notes = forecast(*about)
    assert memory.startswith("memory: about ") and "GiB free" in memory
    assert notes and list(forecast(*about, alone=False)) == notes


def test_a_plan_that_fails_costs_the_run_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hone.commands.forecast.this_device", lambda *args, **kwargs: 1 / 0)
    line = ["sft", "@", "examples/reverse_text/tiny_sft.toml", "--max-steps", "1", "--display", "plain"]
    assert main([*line, "--output-dir", str(tmp_path / "run")]) == 0
    assert "No memory estimate: ZeroDivisionError" in capsys.readouterr().out


def test_a_calibration_may_fetch_what_a_plan_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan sets for itself is not handed on to the processes that it starts."""
    from datasets import config

    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    look_at(parse(SFTConfig, ["@", "examples/reverse_text/tiny_sft.toml"], "sft"))
    assert config.HF_HUB_OFFLINE is False
