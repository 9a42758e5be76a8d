"""How `hone rl` runs when nobody says it: in one process, or in one for each role where there are GPUs for them."""

from __future__ import annotations

import pytest

from hone.commands.rl import with_mode
from hone.config.parse import parse
from hone.config.rl import RLConfig


@pytest.mark.parametrize(
    ("gpus", "line", "mode", "ranks"),
    [
        ("", "", "colocated", 1),
        ("0", "", "colocated", 1),
        ("0,1,2,3", "", "split", 3),
        ("0,1,2,3", "--mode colocated", "colocated", 1),
        ("0,1,2,3", "--trainer.ranks 2", "split", 2),
        ("0,1,2,3", "--model.device cuda:1", "colocated", 1),
        ("0,1,2,3", "--orchestrator.client.base-url http://localhost:8000/v1", "colocated", 1),
    ],
)
def test_it_goes_by_the_gpus_unless_the_user_says_it(gpus, line, mode, ranks, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    config = with_mode(parse(RLConfig, line.split(), "rl"))
    assert (config.mode, config.trainer.ranks) == (mode, ranks)
