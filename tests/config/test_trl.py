"""Arguments of TRL's have hints, from the table that the reference shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.config.base import lookup
from hone.config.parse import from_settings, parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.trl import KEYS, TRL
from hone.errors import UserError, in_python

OF_TRACKERS = [name for name, (key, _) in TRL.items() if key.startswith("wandb.")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.needs("trackers")] * (name in OF_TRACKERS)) for name in TRL]
)
def test_each_key_of_the_table_is_there(name: str) -> None:
    key, note = TRL[name]
    assert key or note
    assert not key or lookup(RLConfig, tuple(KEYS.get(key, key).split(".")))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("per_device_train_batch_size", "orchestrator.batch_size? (counts the completions of a step, on all devices)"),
        ("processing_class", "did you mean model.name?"),
        ("max_prompt_length", "did you mean seq_len?"),
        ("train_dataset", "did you mean dataset?"),
        ("args", "give the settings themselves"),
    ],
)
def test_an_argument_of_trl_has_a_hint(name: str, hint: str) -> None:
    with pytest.raises(UserError) as error:
        from_settings(RLConfig, None, {name: 1})
    assert f"there is no key {name!r}: " in str(error.value) and hint in str(error.value)


@pytest.mark.parametrize(
    ("cls", "flag", "hint"),
    [
        (RLConfig, "--per-device-train-batch-size", "--orchestrator.batch-size"),
        (RLConfig, "--train-dataset", "--data"),
        (SFTConfig, "--per-device-train-batch-size", "--data.batch-size"),
        (SFTConfig, "--learning-rate", "--optim.lr"),
        (RLConfig, "--optim.lr", "--trainer.optim.lr"),
    ],
)
def test_the_same_as_flags(cls: type, flag: str, hint: str) -> None:
    with pytest.raises(UserError, match=f"did you mean {hint}[?]"):
        parse(cls, [flag, "1"], "prog")


def test_a_file_is_told_its_key_and_not_the_keyword(tmp_path: Path) -> None:
    file = tmp_path / "rl.toml"
    file.write_text('train_dataset = "x"\n')
    with pytest.raises(UserError, match=r"did you mean data\?"):
        parse(RLConfig, ["@", str(file)], "prog")


def test_errors_name_keywords_instead_of_flags_but_not_in_commands() -> None:
    text = "add --reward MODULE:FUNCTION, --seq-len 64 or --no-ckpt; see `hone audit X --seed 1`"
    assert in_python(text) == "add reward_funcs, seq_len=64 or ckpt=False; see `hone audit X --seed 1`"
