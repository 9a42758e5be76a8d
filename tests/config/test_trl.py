"""Arguments of TRL's have hints, from the table that the reference shows."""

from __future__ import annotations

import pytest

from hone.config.base import lookup
from hone.config.parse import parse
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


def test_errors_name_keywords_instead_of_flags_but_not_in_commands() -> None:
    text = "add --reward MODULE:FUNCTION, --seq-len 64 or --no-ckpt; see `hone audit X --seed 1`"
    assert in_python(text) == "add reward_funcs, seq_len=64 or ckpt=False; see `hone audit X --seed 1`"
