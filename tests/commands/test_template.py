"""`data.template`, `orchestrator.env.template` and `hone eval --template` at the command line."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from refusals import fails

from hone.cli import main
from hone.runs import Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"
SECTION = PAGE.read_text().split("## Data with other columns")[1].split("\n## ")[0]


@pytest.fixture(autouse=True)
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data set of the page: its own line, and more like it."""
    monkeypatch.chdir(tmp_path)
    (shown,) = re.findall(r"```json\n(.*?)\n```", SECTION)
    row = {**json.loads(shown), "nil": None}
    rows = [
        row,
        *({**row, "id": i, "task": {"text": f"{i} + {i}?", "level": 1}, "gold": 2 * i, "nil": None} for i in range(20)),
    ]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sft, rl = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    Path("words_sft.toml").write_text(sft)
    Path("words_rl.toml").write_text(rl)
    return Path("problems.jsonl")


SHORT = ["--max-steps", "2", "--display", "plain"]
FEW = ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]


def test_the_section_on_other_columns(capsys):
    """Its commands, cut to two steps: what was trained on and asked is what the templates say."""
    (commands,) = re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL)
    sft, rl, evaluate = (shlex.split(line) for line in commands.splitlines())
    assert main([*sft, *SHORT, "--data.batch-size", "4", "--no-data.pack"]) == 0
    Path("outputs/words-sft/weights/step_200").symlink_to("step_2")
    assert main([*rl, *SHORT, *FEW, "--orchestrator.sampling.max-tokens", "8"]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(told)[-2:] == evaluate[-2:]
    prompts = Run("outputs/words-rl").rollouts(0).column("prompt").to_pylist()
    assert all(re.search(r"Think step by step\.(.|\n)*(\d+ \+ \d+|Mia has .*)\?", prompt) for prompt in prompts), (
        prompts
    )
    Path("outputs/words-rl/weights/step_100").symlink_to("step_2")
    assert main([*evaluate[1:], "-r", "1", "-t", "8"]) == 0
    out = capsys.readouterr().out
    assert "gsm8k has 2 held-out examples" in out and "--template" in out.splitlines()[-1]
    (metadata,) = Path("outputs/evals").rglob("metadata.json")
    assert json.loads(metadata.read_text())["template"] == json.loads(evaluate[-1])


def test_sft_imitates_the_messages_that_the_template_makes():
    from hone.composition.sft import load_data
    from hone.config.parse import parse
    from hone.config.sft import SFTConfig
    from hone.model.chat import load_renderer
    from hone.model.hf import load_model

    config = parse(SFTConfig, ["@", "words_sft.toml", "--max-steps", "1"], "sft")
    renderer = load_renderer("hone/tiny")
    rows = load_data(config, renderer, load_model("hone/tiny", seed=0)).source.rows
    assert rows[0]["messages"] == [
        {"role": "system", "content": "Think step by step."},
        {"role": "user", "content": "Mia has 3 bags of 14 nuts. How many nuts?"},
        {"role": "assistant", "content": "3 * 14 = 42\nANSWER: 42"},
    ]


@pytest.mark.parametrize(("kind", "file"), [("sft", "words_sft.toml"), ("rl", "words_rl.toml")])
def test_the_resolved_config_holds_the_template(kind, file):
    from hone.config.dump import to_toml
    from hone.config.parse import parse
    from hone.config.rl import RLConfig
    from hone.config.sft import SFTConfig

    cls = SFTConfig if kind == "sft" else RLConfig
    config = parse(cls, ["@", file], kind)
    Path("resolved.toml").write_text(to_toml(config))
    assert parse(cls, ["@", "resolved.toml"], kind) == config


def test_turns_of_the_page_become_messages():
    from hone.environments.template import Template

    (shown,) = re.findall(r"`(messages = \{ each .*?\})`", SECTION)
    row = {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}
    assert Template(tomllib.loads(shown)).row(row, "row") == {
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    }


def test_flags_make_a_template_too(capsys):
    flags = ["--data.template.prompt", "{task.text}", "--data.template.completion", "{gold}", "--no-data.pack"]
    assert main(["sft", "--data.path", "problems.jsonl", *flags, *SHORT, "--output-dir", "out"]) == 0
    assert tomllib.loads(Path("out/config.toml").read_text())["data"]["template"] == {
        "prompt": "{task.text}",
        "completion": "{gold}",
    }


def test_a_demonstrated_task_reads_its_data_through_its_template(capsys):
    template = '{"question": "{task.text}", "answer": "{steps}\\n#### {gold}"}'
    flags = ["--data.env.id", "gsm8k", "--data.env.args.dataset", "problems.jsonl", "--no-data.pack"]
    assert main(["sft", *flags, "--data.env.template", template, *SHORT, "--output-dir", "out"]) == 0


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--data.template.prompt", "{task.text}"], ["data.template makes prompt; SFT learns from messages, or from"]),
        (["--data.template.mesages", "{task}"], ["data.template makes mesages"]),
        (["--data.template.messages", "{tsak}"], ["problems.jsonl, line 1: no column 'tsak'", "did you mean {task}?"]),
        (["--data.template.messages", "{task!r}"], ["data.template.messages: {task!r} is no placeholder"]),
        (["--data.template.messages", "{gold}"], ["column `messages` must be a list of messages"]),
        (
            ["--data.template.prompt", "{task.text}", "--data.template.completion", "{nil}"],
            [": column `completion` is null"],
        ),
        (["--data.template", "{}"], ["data.template makes nothing"]),
        (
            ["--data.path", "None", "--data.env.id", "gsm8k", "--data.template.messages", "{q}"],
            ["set data.env.template for an environment"],
        ),
    ],
)
def test_sft_refuses(flags, why, capsys):
    fails(capsys, main(["sft", "--data.path", "problems.jsonl", *SHORT, *flags]), *why)
    assert not Path("outputs").exists()


def test_rl_and_eval_name_the_key_of_a_bad_template(capsys):
    Path("words_rl.toml").write_text(Path("words_rl.toml").read_text().replace("{gold}", "{golt}"))
    fails(capsys, main(["rl", "@", "words_rl.toml", *SHORT, "--model.name", "hone/tiny"]),
          "no column 'golt', which orchestrator.env.template.answer wants (did you mean {gold}?)")  # fmt: skip
    fails(capsys, main(["eval", "gsm8k", "--template.answer", "{gold}"]), "gsm8k makes up its own")


@pytest.mark.parametrize(
    ("command", "key", "file"),
    [("sft", "data.template", "words_sft.toml"), ("rl", "orchestrator.env.template", "words_rl.toml")],
)
def test_a_resume_with_another_template_is_refused(command, key, file, capsys):
    short = [*SHORT, "--model.name", "hone/tiny", "--ckpt.interval", "1"]
    short += [*FEW, "--orchestrator.sampling.max-tokens", "8"] if command == "rl" else ["--no-data.pack"]
    assert main([command, "@", file, *short]) == 0
    assert main([command, "@", file, *short, "--resume.step", "1"]) == 0
    Path(file).write_text(Path(file).read_text().replace("{task.text}", "Say: {task.text}"))
    capsys.readouterr()
    fails(capsys, main([command, "@", file, *short, "--resume.step", "1"]), f"with another {key}.", ", data (")
