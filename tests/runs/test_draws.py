"""The ledger as it is read: from the newest intact checkpoint, then from rollouts."""

from pathlib import Path

import pytest
from run_folders import checkpoint, entry, make_run, rollouts

from hone.runs import Run

FIRST = [entry(0, 0, "a"), entry(1, 0, "b", "filtered", 20)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints of steps 1 and 2, rollouts of steps 0 to 3, two draws a step."""
    run = make_run(tmp_path / "run", "stopped")
    checkpoint(run, 1, FIRST)
    checkpoint(run, 2, [*FIRST, entry(2, 1, "c"), entry(3, 1, "d")])
    for step, names in enumerate(["ab", "cd", "ef", "gh"]):
        rollouts(run, step, *[(2 * step + i, name, ["trained", "trained"]) for i, name in enumerate(names)])
    return run


def test_from_the_newest_checkpoint_and_then_from_rollouts(run: Path) -> None:
    ledger = Run(run).ledger()
    assert [draw["draw"] for draw in ledger] == list(range(8))
    assert "".join(draw["example_id"] for draw in ledger) == "abcdefgh"
    assert [draw["source"] for draw in ledger] == ["checkpoint"] * 4 + ["rollouts"] * 4
    assert ledger[1] == entry(1, 0, "b", "filtered", 20) | {"source": "checkpoint"}
    assert ledger[4] == entry(4, 2, "e", "trained", 10) | {"source": "rollouts"}


def test_a_groups_state_is_that_of_a_sample_that_could_be_graded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "failed")
    rollouts(run, 0, (0, "a", ["failed", "filtered", "failed"]), (1, "b", ["failed", "failed"]), (2, "c", ["trained"]))
    assert [(draw["state"], draw["tokens"]) for draw in Run(run).ledger()] == [
        ("filtered", 15),
        ("failed", 10),
        ("trained", 5),
    ]


def test_a_group_that_an_older_refill_cut_off_counts_as_not_graded(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "config.toml").open("a").write("\n[orchestrator.curriculum.pool]\n")
    rollouts(run, 0, (0, "a", ["cut", "cut"]), (1, "b", ["trained", "trained"]))
    assert [(draw["state"], draw["graded"]) for draw in Run(run).ledger()] == [("cut", 0), ("trained", 2)]
