"""`hone plan`, as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.cli import main
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.shared import InitConfig
from hone.extensions.planning import devices
from hone.extensions.planning.data import Facts
from hone.extensions.planning.forecast import forecast
from hone.extensions.planning.report import plan_of
from hone.model.chat import load_renderer
from hone.model.presets import tiny_config

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(devices, "_measured_speed", lambda threads: ({"bf16": 4e11, "fp32": 1e11}, 3e10))


def test_what_does_not_fit_ends_with_1_and_says_what_would(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "@", "examples/gsm8k/v1_sparse.toml", "--on", "16gb"]) == 1
    page = capsys.readouterr().out
    assert "RL of Qwen/Qwen2.5-1.5B-Instruct (1.54B parameters, bf16_linear) on gsm8k" in page
    assert "each of the 5,000 is seen once" in page and "does NOT fit" in page and "What would make it fit" in page
    assert "checkpointing = layer" in page and "--precision bf16: " in page and "--trainer.optim" not in page
    assert "chosen: micro_batch_tokens 2,048, checkpointing layer, optim.offload true and cuda_graphs false" in page
    assert "27.5 GiB of the host's memory for optim.offload" in page
    assert "Time and cost" not in page


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


def test_a_run_on_a_cluster_is_planned_as_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["plan", "--model.name", "hone/tiny", "--on", "h100", "--cluster"]
    assert main([*line, "--json"]) == 0
    note = "mode split: memory is the trainer's only; time is for one device that samples and trains"
    assert note in json.loads(capsys.readouterr().out)["notes"]
    assert main(line) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Start it: `hone rl` with the same files and flags, without --on."


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
        absent, last = capsys.readouterr().out.splitlines()[-2:]
        assert absent.startswith("It can't start here yet: ") and words in absent and last.startswith("Then start it: ")
    assert main(["plan", "--orchestrator.env.id", "nosuch", "--on", "h100"]) == 0
    assert "It can't start here yet: no environment 'nosuch'" in capsys.readouterr().out
    assert main(["plan", "--orchestrator.env.id", "nosuch", "--json"]) == 0
    assert "no environment 'nosuch'" in json.loads(capsys.readouterr().out)["missing"][0]


def test_a_prompt_that_does_not_fit_is_what_a_run_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model.name", "hone/tiny", "--orchestrator.env.id", "reverse-text", "--seq-len", "8"]
    assert main(["plan", *flags]) == 1
    assert "tokens does not fit into seq_len = 8. Raise seq_len." in capsys.readouterr().out.splitlines()[-1]
    assert main(["plan", *flags, "--json"]) == 1
    assert "does not fit into seq_len = 8" in json.loads(capsys.readouterr().out)["refused"]


@pytest.mark.parametrize(
    ("flags", "exit_code"),
    [
        (["--on", "rtx4090", "--model.lora.rank", "4", "--model.lora.base", "4bit"], 1),
        (["--on", "rtx4090", "--model.lora.rank", "4", "--model.lora.base", "8bit"], 0),
        (["--on", "20gb"], 2),
        (["--on", "h100", "--usd-per-hour", "inf"], 2),
        (["--model.device", "cuda"], 2),
        (["--on", "h100", "--model.name", "odd"], 2),
    ],
)
def test_a_plan_refuses_what_a_run_refuses(
    flags: list[str], exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base in 4 bits with odd rows, an unknown card, a price without end, no GPU here, a folder without config."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd").mkdir()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tiny = ["--model.name", "hone/tiny", "--model.init.intermediate", "101"] if "odd" not in flags else []
    assert main(["plan", "--orchestrator.env.id", "reverse-text", *tiny, *flags]) == exit_code


def test_a_plan_chooses_what_the_run_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short prompts, which the run has not seen when it chooses, change no setting; and what is chosen fits."""
    for model, on in (("Qwen/Qwen3-4B", "l40s"), ("Qwen/Qwen3-8B", "b200"), ("Qwen/Qwen3-0.6B", "rtx4090")):
        flags = ["--model.name", model, "--seq-len", "2048", "--orchestrator.env.id", "reverse-text"]
        config, card = parse(RLConfig, flags, "rl"), devices.DEVICES[on]
        facts = Facts(pool=100, prompts=(40, 50), references=(9,))
        seen, unseen = (plan_of(config, card, one, here=False) for one in (facts, Facts()))
        assert seen.evaluated == unseen.evaluated and seen.fits and unseen.fits


def test_a_run_of_several_processes_gets_no_estimate_of_its_memory() -> None:
    config = parse(RLConfig, ["--orchestrator.env.id", "reverse-text", "--trainer.scheduler.warmup-steps", "999"], "rl")
    about = (config, tiny_config(InitConfig()), load_renderer("hone/tiny"))
    memory, *notes = forecast(*about)
    assert memory.startswith("memory: about ") and "GiB free" in memory
    assert notes and list(forecast(*about, alone=False)) == notes
