"""Shared keys move from the sections to the top; places that disagree are an error; a root flag overrides them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.errors import UserError

FILES = "--trainer @ train.toml --orchestrator @ orch.toml"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "train": 'max_steps = 20\n[model]\nname = "M"\n[ckpt]\n[optim]\nlr = 3e-6\n',
        "orch": 'max_steps = 20\nseq_len = 128\n[ckpt]\ninterval = 5\n[model]\nchat_template = "T"\n',
        "other": "max_steps = 40\n",
        "infer": '[model]\nname = "M"\n',
        "root": 'max_steps = 7\n[model]\nname = "X"\n[trainer.model]\nname = "Y"\n',
        "tables": "[trainer]\nmax_steps = 3\n[orchestrator]\nbatch_size = 64\n[inference]\nport = 1\n",
        "mode": 'mode = "colocated"\n',
        "optim": "lr = 1e-3\n",
    }.items():
        (tmp_path / f"{name}.toml").write_text(text)


def rl(line: str) -> RLConfig:
    return parse(RLConfig, line.split(), "rl")


def test_sections_that_agree_are_merged_at_the_top() -> None:
    config = rl(f"{FILES} --inference @ infer.toml")
    assert (config.max_steps, config.seq_len) == (20, 128)
    assert (config.model.name, config.model.chat_template) == ("M", "T")
    assert config.ckpt is not None and config.ckpt.interval == 5
    assert config.trainer.optim.lr == 3e-6


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--trainer @ train.toml --orchestrator @ other.toml",
            "trainer.max_steps = 20 (train.toml) and orchestrator.max_steps = 40 (other.toml) disagree: set max_steps "
            "once, at top level, or override both with --max-steps",
        ),
        ("@ root.toml", "model.name = 'X' (root.toml) and trainer.model.name = 'Y' (root.toml) disagree"),
        (
            "@ root.toml --trainer @ train.toml --model.name Z",
            "max_steps = 7 (root.toml) and trainer.max_steps = 20 (train.toml) disagree",
        ),
        (
            "--orchestrator @ other.toml --trainer.max-steps 5",
            "orchestrator.max_steps = 40 (other.toml) and trainer.max_steps = '5' (--trainer.max-steps) disagree",
        ),
        (f"{FILES} --inference @ infer.toml --orchestrator.client.base-url http://localhost:8001/v1", "--inference @"),
    ],
)
def test_places_that_disagree_are_named_with_their_values_and_files(line: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}"):
        rl(line)


def test_an_explicit_root_flag_overrides_files_and_section_flags() -> None:
    assert rl("@ root.toml --model.name Z").model.name == "Z"
    assert rl("--trainer @ train.toml --orchestrator @ other.toml --max-steps 3").max_steps == 3
    assert rl("--max-steps 3 --trainer.max-steps 5").max_steps == 3
    assert rl("--trainer.max-steps 5 --orchestrator.max_steps 5").max_steps == 5
    assert rl("--trainer @ train.toml --no-ckpt").ckpt is None
    config = rl(f"{FILES} --model.name N --ckpt.interval 2")
    assert (config.model.name, config.model.chat_template, config.ckpt.interval) == ("N", "T", 2)


def test_files_of_their_own_choose_split_mode_and_tables_never_do() -> None:
    assert rl("").mode is None
    assert rl("@ tables.toml").mode is None
    assert rl("--trainer.optim.lr 1e-3 --trainer.optim @ optim.toml").mode is None
    for section, file in (("trainer", "train"), ("orchestrator", "orch"), ("inference", "infer")):
        assert rl(f"--{section} @ {file}.toml").mode == "split"
    assert rl("--trainer @ train.toml --mode colocated").mode == "colocated"
    assert rl("@ mode.toml --trainer @ train.toml").mode == "colocated"


def test_hoisting_from_python_leaves_what_was_handed_in_as_it_was() -> None:
    tree = {"trainer": {"model": {"name": "M"}, "max_steps": 5}}
    assert RLConfig.model_validate(tree).max_steps == 5
    assert tree == {"trainer": {"model": {"name": "M"}, "max_steps": 5}}
    with pytest.raises(ValueError, match=r"max_steps = 4 and trainer.max_steps = 5 disagree"):
        RLConfig(max_steps=4, trainer={"max_steps": 5})


def test_a_flag_for_what_rewards_overrides_files_that_say_otherwise() -> None:
    Path("rewards.toml").write_text('reward = ["a:exact"]\ndata = "rows.jsonl"\n')
    Path("agent.toml").write_text('data = "rows.jsonl"\n[orchestrator.env.args]\nagent = "a:agent"\n')
    assert rl("@ rewards.toml --agent b:agent").orchestrator.env.args == {"data": "rows.jsonl", "agent": "b:agent"}
    args = {"data": "rows.jsonl", "agent_command": "run"}
    assert rl("@ agent.toml --agent-command run").orchestrator.env.args == args
    assert rl("@ agent.toml --reward b:exact").orchestrator.env.args == {"data": "rows.jsonl", "rewards": ["b:exact"]}


TASK = ("--reward", "r:f", "--data", "a.jsonl")


def parsed(*words: str) -> RLConfig:
    return parse(RLConfig, list(words), "rl")


def test_a_task_without_a_file_takes_evaluation_data_a_system_prompt_and_a_reference() -> None:
    words = ("--eval-data", "b.jsonl", "--system-prompt", "Be brief.", "--reference", "<a>{answer}</a>")
    orchestrator = parsed(*TASK, *words).orchestrator
    more = {"eval_data": "b.jsonl", "system_prompt": "Be brief.", "reference": "<a>{answer}</a>"}
    assert orchestrator.env.args == {"rewards": ["r:f"], "data": "a.jsonl", **more}
    assert orchestrator.eval is not None and orchestrator.eval.interval == 50, "it is on"
    assert parsed(*TASK).orchestrator.eval is None
    assert parsed(*TASK, *words, "--orchestrator.eval.interval", "7").orchestrator.eval.interval == 7
    for words, sentence in (
        (("--reward-weights", "1,2"), r"reward_weights is \['1,2'\]; it takes numbers"),
        (("--system-prompt", "x", "--orchestrator.env.id", "gsm8k"), "system_prompt is for a task of reward functions"),
    ):
        with pytest.raises(UserError, match=sentence):
            parsed(*(TASK if "gsm8k" not in words else ()), *words)
