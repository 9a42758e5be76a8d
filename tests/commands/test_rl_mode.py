"""How `hone rl` runs when nobody says it: in one process, or in one for each role where there are GPUs for them."""

from __future__ import annotations

import pytest

from hone.commands.rl import with_mode
from hone.config.parse import parse
from hone.config.rl import RLConfig


def moded(line: str) -> RLConfig:
    return with_mode(parse(RLConfig, line.split(), "rl"))


@pytest.mark.parametrize(
    ("gpus", "mode", "ranks"), [("", "colocated", 1), ("0", "colocated", 1), ("0,1,2,3", "split", 3)]
)
def test_it_goes_by_the_number_of_gpus(gpus: str, mode: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    config = moded("")
    assert (config.mode, config.trainer.ranks) == (mode, ranks)


@pytest.mark.parametrize(
    ("line", "mode", "ranks"),
    [
        ("--mode colocated", "colocated", 1),
        ("--trainer.ranks 2", "split", 2),
        ("--model.device cuda:1", "colocated", 1),
        ("--orchestrator.client.base-url http://localhost:8000/v1", "colocated", 1),
    ],
)
def test_what_the_user_says_comes_first(line: str, mode: str, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    config = moded(line)
    assert (config.mode, config.trainer.ranks) == (mode, ranks)
