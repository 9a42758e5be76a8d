"""Shared keys move from the sections to the top; places that disagree are an error; a root flag overrides them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.errors import UserError


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.toml").write_text('max_steps = 20\n[model]\nname = "M"\n[ckpt]\n[optim]\nlr = 3e-6\n')
    Path("orch.toml").write_text('max_steps = 20\nseq_len = 128\n[ckpt]\ninterval = 5\n[model]\nchat_template = "T"\n')
    Path("other.toml").write_text("max_steps = 40\n")
    Path("infer.toml").write_text('[model]\nname = "M"\n')


def rl(line: str) -> RLConfig:
    return parse(RLConfig, line.split(), "rl")


def refused(line: str) -> str:
    with pytest.raises(UserError) as caught:
        rl(line)
    return str(caught.value)


def test_sections_that_agree_are_merged_at_the_top() -> None:
    config = rl("--trainer @ train.toml --orchestrator @ orch.toml --inference @ infer.toml")
    assert (config.max_steps, config.seq_len) == (20, 128)
    assert (config.model.name, config.model.chat_template) == ("M", "T")
    assert config.ckpt is not None and config.ckpt.interval == 5
    assert config.trainer.optim.lr == 3e-6


def test_sections_that_disagree_name_both_keys_values_and_files() -> None:
    assert refused("--trainer @ train.toml --orchestrator @ other.toml") == (
        "trainer.max_steps = 20 (train.toml) and orchestrator.max_steps = 40 (other.toml) disagree: "
        "set max_steps once at the top, or override both with --max-steps"
    )


def test_a_server_is_started_or_is_up() -> None:
    files = "--trainer @ train.toml --orchestrator @ orch.toml"
    assert rl(files).orchestrator.client.base_url == "http://localhost:8000/v1"
    assert rl(f"{files} --inference @ infer.toml").orchestrator.client.base_url is None
    up = "--orchestrator.client.base-url http://localhost:8001/v1"
    assert rl(f"{files} {up}").server_url == "http://localhost:8001/v1"
    assert "leave out one of them" in refused(f"{files} --inference @ infer.toml {up}")


def test_the_top_of_a_file_and_a_section_must_agree_too() -> None:
    Path("root.toml").write_text('max_steps = 7\n[model]\nname = "X"\n[trainer.model]\nname = "Y"\n')
    message = refused("@ root.toml")
    assert "model.name = 'X' (root.toml) and trainer.model.name = 'Y' (root.toml) disagree" in message
    assert "--model.name" in message
    assert rl("@ root.toml --model.name Z").model.name == "Z"
    assert "max_steps = 7 (root.toml) and trainer.max_steps = 20" in refused(
        "@ root.toml --trainer @ train.toml --model.name Z"
    )


def test_an_explicit_root_flag_overrides_files_and_section_flags() -> None:
    files = "--trainer @ train.toml --orchestrator @ other.toml"
    assert rl(f"{files} --max-steps 3").max_steps == 3
    assert rl("--max-steps 3 --trainer.max-steps 5").max_steps == 3
    assert rl("--trainer @ train.toml --no-ckpt").ckpt is None
    config = rl("--trainer @ train.toml --orchestrator @ orch.toml --model.name N --ckpt.interval 2")
    assert (config.model.name, config.model.chat_template, config.ckpt.interval) == ("N", "T", 2)


def test_a_section_flag_is_hoisted_and_may_not_contradict_a_file() -> None:
    assert rl("--trainer.max-steps 5 --orchestrator.max_steps 5").max_steps == 5
    assert "orchestrator.max_steps = 40 (other.toml) and trainer.max_steps = '5' (--trainer.max-steps)" in refused(
        "--orchestrator @ other.toml --trainer.max-steps 5"
    )


def test_files_of_their_own_choose_split_mode_and_tables_never_do() -> None:
    Path("tables.toml").write_text("[trainer]\nmax_steps = 3\n[orchestrator]\nbatch_size = 64\n[inference]\nport = 1\n")
    Path("mode.toml").write_text('mode = "colocated"\n')
    Path("optim.toml").write_text("lr = 1e-3\n")
    assert rl("").mode is None
    assert rl("@ tables.toml").mode is None
    assert rl("--trainer.optim.lr 1e-3 --trainer.optim @ optim.toml").mode is None
    for section, file in (("trainer", "train"), ("orchestrator", "orch"), ("inference", "infer")):
        assert rl(f"--{section} @ {file}.toml").mode == "split"
    assert rl("--trainer @ train.toml --mode colocated").mode == "colocated"
    assert rl("@ mode.toml --trainer @ train.toml").mode == "colocated"


def test_hoisting_from_python() -> None:
    assert RLConfig(trainer={"max_steps": 5}).max_steps == 5
    assert RLConfig.model_validate({"orchestrator": {"seq_len": 99}}).seq_len == 99
    with pytest.raises(ValueError, match=r"max_steps = 4 and trainer.max_steps = 5 disagree"):
        RLConfig(max_steps=4, trainer={"max_steps": 5})


def test_what_was_handed_in_is_left_as_it_was() -> None:
    tree = {"trainer": {"model": {"name": "M"}, "max_steps": 5}}
    RLConfig.model_validate(tree)
    assert tree == {"trainer": {"model": {"name": "M"}, "max_steps": 5}}
