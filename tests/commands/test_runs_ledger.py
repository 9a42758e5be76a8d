"""`hone runs ledger`: the draws, and what they add up to."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import checkpoint, entry, make_run, rollouts

from hone.cli import main

ENTRIES = [entry(0, 0, "a"), entry(1, 0, "b", "filtered", 20), entry(2, 1, "a"), entry(3, 1, "b", "failed", 40)]


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with a checkpoint of step 2 and rollouts of two steps more."""
    monkeypatch.chdir(tmp_path)
    run = make_run(Path("outputs"), "stopped")
    checkpoint(run, 2, ENTRIES)
    rollouts(run, 2, (4, "b", ["trained", "trained"]))
    rollouts(run, 3, (5, "a", ["trained", "failed"]), (6, "a", ["filtered"]))
    return run


def test_the_table_and_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "ledger"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["draw", "step", "example", "state", "tokens", "from"],
        ["0", "0", "a", "trained", "10", "checkpoint"],
        ["1", "0", "b", "filtered", "20", "checkpoint"],
    ]
    assert lines[6].split() == ["5", "3", "a", "trained", "10", "rollouts"]
    assert lines[8:] == [
        "",
        "draws     7 in 4 steps: 4 trained, 2 filtered, 1 failed",
        "tokens    105, prompts and completions",
        "epochs    3 of 2 examples, each exactly once; 1 of the next",
        "open      the draws of steps 2 to 3 are in no checkpoint yet: a resume would take them again",
    ]


def test_some_of_the_draws(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*flags: str) -> list[str]:
        assert main(["runs", "ledger", *flags]) == 0
        head = capsys.readouterr().out.split("\n\n")[0].splitlines()
        return [line.split()[0] for line in head if line[0].isdigit()]

    assert shown("--state", "filtered") == ["1", "6"]
    assert shown("--step", "1") == ["2", "3"]
    assert shown("--step", "1", "--state", "failed") == ["3"]
    assert shown("--limit", "2") == ["5", "6"]
    assert shown("--limit", "0") == []
    assert main(["runs", "ledger", "--limit", "2"]) == 0
    assert capsys.readouterr().out.startswith("(5 earlier draws: --limit 7 shows all)\n")


def test_an_epoch_that_is_not_whole_is_told_with_exit_code_1(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(run, 4, [entry(0, 0, "a"), entry(1, 0, "b"), entry(2, 1, "b"), entry(3, 1, "b")])
    assert main(["runs", "ledger"]) == 1
    out = capsys.readouterr().out
    assert "epochs    2 of 2 examples, not all with each exactly once\n" in out
    assert "          but epoch 1: b came 2x instead of 1x; a came 0x instead of 1x\n" in out
